package e2e

import (
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// TestAServiceGoesWhereItsRuleAllows places services by the labels of two hosts. A new rule breaks
// no connection.
func TestAServiceGoesWhereItsRuleAllows(t *testing.T) {
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

	p.Pando("restart")
	has(p, p.Pando("hosts"), "disk=ssd zone=a")
	out := p.Run(one, p.Bin, "deploy", p.Write("wide.yaml",
		labtest.Echo("wide", "place: {spread: host}")))
	if out.Code == 0 || !strings.Contains(out.Text, "place.spread") {
		t.Errorf("deploy of a service that spreads: exit code %d, %s", out.Code, out.Text)
	}
}
