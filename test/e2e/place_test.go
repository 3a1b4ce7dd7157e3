package e2e

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// TestAServiceGoesWhereItsRuleAllows places services by the labels of two hosts. A new rule breaks
// no connection.
func TestAServiceGoesWhereItsRuleAllows(t *testing.T) {
	t.Parallel()
	p := labtest.UpWith(t, labtest.Options{Hosts: 2, Idle: true})
	one, two := p.Hosts[0], p.Hosts[1]
	p.Up(one, "--label", "zone=a", "--label", "disk=ssd")
	p.Up(two, append(p.Invitation(), "--label", "zone=b")...)
	awaitState(p, two, pando.HostHere)
	has(p, p.Pando("hosts"), "disk=ssd zone=a", "zone=b")

	web := p.Deploy(labtest.Echo("web", "place: {only: zone=b}"))
	if home := string(web.Status().Home); home != two {
		t.Errorf("web is on %s, and zone=b is %s", home, two)
	}
	db := p.Deploy(labtest.Echo("db", "place: {apart: web}"))
	if home := string(db.Status().Home); home != one {
		t.Errorf("db is on %s, beside web", home)
	}
	has(p, p.Pando("why", "web", "--pending"),
		one, "it lacks the label zone=b", two, "the home of web")

	held := web.Hold(labtest.Client)
	has(p, web.UpdateFails(5, labtest.Echo("web", "place: {only: disk=ssd}")),
		"it runs on "+two+", which lacks the label disk=ssd", "pando rm web")
	if out := held.Stop(); out.Code != 0 {
		t.Errorf("a connection did not outlive a deploy that was refused: %s", out.Text)
	}
	p.Pando("rm", "web", "--wait")
	web = p.Deploy(labtest.Echo("web", "place: {only: disk=ssd}"))
	if home := string(web.Status().Home); home != one {
		t.Errorf("web is on %s, and disk=ssd is %s", home, one)
	}
	web.AwaitPage(labtest.Client)

	p.Pando("daemons", "restart")
	has(p, p.Pando("hosts"), "disk=ssd zone=a")
}

// TestAServiceSpreadsOverHosts runs one service on three hosts. Each client reaches all instances,
// scaling breaks no connection, and the instances of a host that dies are replaced on the others.
func TestAServiceSpreadsOverHosts(t *testing.T) {
	t.Parallel()
	p := labtest.UpWith(t, labtest.Options{Hosts: 3, One: true})
	for _, h := range p.Hosts {
		awaitState(p, h, pando.HostHere)
	}
	web := p.Deploy(labtest.Echo("web", "place: {spread: host}", "scale: {min: 3, max: 6}"))
	web.Await("an instance on each host", func(st pando.ServiceStatus) bool {
		return st.InRotation == 3 && len(seats(st)) == 3
	})
	var held []*labtest.Process
	everywhere := append([]string{labtest.Client}, p.Hosts...)
	for _, from := range everywhere {
		held = append(held, web.Hold(from))
	}
	p.Pando("scale", "web", "6", "--wait")
	for _, from := range everywhere {
		answered := map[string]bool{}
		p.Await("all six from "+from, func() (string, bool) {
			answered[web.Get(from, "/")] = true
			return strings.Join(slices.Collect(maps.Keys(answered)), ", "), len(answered) == 6
		})
	}
	p.Pando("scale", "web", "3", "--wait")
	for _, h := range held {
		if out := h.Stop(); out.Code != 0 {
			t.Errorf("a connection did not outlive the scaling: %s", out.Text)
		}
	}
	p.Pando("scale", "web", "auto")
	p.KillHost(p.Hosts[2])
	web.Await("its instances on the other hosts", func(st pando.ServiceStatus) bool {
		on := seats(st)
		return on[p.Hosts[0]]+on[p.Hosts[1]] == 3
	})
	for _, from := range []string{labtest.Client, p.Hosts[0], p.Hosts[1]} {
		served(p, web, from)
	}
}

// seats counts the instances in rotation of each host.
func seats(st pando.ServiceStatus) map[string]int {
	on := map[string]int{}
	for _, i := range st.Instances {
		if i.Phase == pando.PhaseInRotation {
			on[string(i.Host)]++
		}
	}
	return on
}
