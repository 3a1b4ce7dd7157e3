package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// asksGoOnWithin bounds the time from the death of the leader to the next answered ask.
const asksGoOnWithin = 10 * time.Second

// The death of any server stops no ask for long, moves nothing and breaks nothing. The killed
// servers are the first one, and the one that leads without it.
func TestThreeServersDecideWithoutOne(t *testing.T) {
	t.Parallel()
	p := threeServers(t)
	homes, held := onEveryHost(p)
	before := lives(p, homes)
	killed := p.Host()
	for round := range 2 {
		p.KillServer(killed)
		died := time.Now()
		for host, s := range homes { // also the hosts with a server that lives
			asksGoOn(p, s)
			t.Logf("round %d: %s is killed; the first ask on %s is answered %s later", round, killed, host,
				time.Since(died).Round(time.Millisecond))
		}
		if took := time.Since(died); took > asksGoOnWithin {
			t.Errorf("the next answers took %s", took)
		}
		for _, host := range p.Hosts { // commands too, except on the host of the dead server
			if out := p.Run(host, p.Bin, "status"); host != killed && out.Code != 0 {
				t.Errorf("pando status on %s: %s", host, out.Text)
			}
		}
		p.Up(killed)
		for _, h := range p.Hosts {
			awaitState(p, h, pando.HostHere)
		}
		killed = p.Hosts[1]
	}
	for _, h := range held {
		if out := h.Stop(); out.Code != 0 {
			t.Errorf("a connection was broken: %s", out.Text)
		}
	}
	if after := lives(p, homes); after != before {
		t.Errorf("the first instances were %s, and are %s", before, after)
	}
	for _, s := range homes {
		unmoved(p, s)
	}
}

// threeServers makes a lab with three hosts that are all servers.
func threeServers(t *testing.T) *labtest.Pando {
	p := labtest.UpWith(t, labtest.Options{Hosts: 3, Idle: true, Flags: []string{"--pool", "1"}})
	p.Up(p.Host())
	for _, host := range p.Hosts[1:] {
		var is struct{ Join, Token string }
		if err := json.Unmarshal([]byte(p.Pando("servers", "add", "-o", "json")), &is); err != nil {
			t.Fatal(err)
		}
		p.Up(host, "--server", "--join", is.Join, "--token", is.Token)
	}
	return p
}

// onEveryHost deploys services until each host is the home of one, and holds a connection to each.
func onEveryHost(p *labtest.Pando) (map[string]*labtest.Service, []*labtest.Process) {
	p.Helper()
	homes := map[string]*labtest.Service{}
	var held []*labtest.Process
	for n := 0; len(homes) < len(p.Hosts); n++ {
		if n == 2*len(p.Hosts) {
			p.Fatalf("the services came to %v", homes)
		}
		s := p.Deploy(labtest.Echo(fmt.Sprintf("web%d", n), "scale: {min: 1, max: 9}"))
		homes[homeOf(p, s.AwaitInstances(1))] = s
		held = append(held, s.Hold(labtest.Client))
	}
	return homes, held
}

// asksGoOn waits until an instance's replicate is answered.
func asksGoOn(p *labtest.Pando, s *labtest.Service) {
	p.Helper()
	p.Await("an answer to an ask of "+s.Name, func() (string, bool) {
		out := p.Run(labtest.Client, "curl", "-sS", "--fail-with-body", "--max-time", "10",
			s.URL("/self?path=/v1/self/replicate&body=%7B%7D"))
		return out.Text, out.Code == 0
	})
}

// lives returns the first instance of each service.
func lives(p *labtest.Pando, all map[string]*labtest.Service) string {
	var out []string
	for _, host := range p.Hosts {
		first := slices.MinFunc(all[host].Status().Instances, func(a, b pando.InstanceStatus) int {
			return a.Born.Compare(b.Born)
		})
		out = append(out, fmt.Sprint(first.ID, " on ", first.Host))
	}
	return strings.Join(out, ", ")
}

// unmoved checks that a service is on one host, and that each of its programs began once.
func unmoved(p *labtest.Pando, s *labtest.Service) {
	p.Helper()
	st := s.Status()
	homeOf(p, st)
	log := p.Pando("logs", s.Name, "--lines", "1000")
	for _, i := range st.Instances {
		if n := strings.Count(log, "hello from "+string(i.ID)+"\n"); n != 1 {
			p.Errorf("%s began %d times", i.ID, n)
		}
	}
	if n := strings.Count(log, "hello from "); n != len(st.Instances) {
		p.Errorf("%d programs of %s began, and it has %d instances", n, s.Name, len(st.Instances))
	}
}
