package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// TestADayOnTwoHosts looks after a service with its home on another host than the server's.
func TestADayOnTwoHosts(t *testing.T) {
	t.Parallel()
	p := labtest.UpWith(t, labtest.Options{Hosts: 2, One: true, Flags: []string{"--pool", "1"}})
	var away *labtest.Service
	for _, name := range []string{"web", "shop"} { // each host is the home of one
		s := p.Deploy(labtest.Echo(name, "scale: {min: 1, max: 4}"))
		if homeOf(t, s.AwaitInstances(1)) == p.Hosts[1] {
			away = s
		}
	}
	if away == nil {
		t.Fatal("no service has its home on the second host")
	}
	t.Run("revisions", func(t *testing.T) { revisionsOfADay(p.In(t), away.In(p.In(t))) })
	t.Run("stats", func(t *testing.T) { statsOfADay(p.In(t), away.In(p.In(t))) })
	t.Run("logs", func(t *testing.T) { logsOfADay(p.In(t), away.In(p.In(t))) })
}

func revisionsOfADay(p *labtest.Pando, s *labtest.Service) {
	s.Update(labtest.Echo(s.Name, "scale: {min: 1, max: 4}", "environment: {TEXT: two}"))
	p.Pando("rollback", s.Name, "--wait", "--reason", "it greets")
	has(p, p.Pando("history", s.Name), "environment.TEXT", "back to 1")
	has(p, p.Pando("diff", s.Name, "1", "2"), "+  TEXT: two")
	has(p, s.Why(), "revision 3, with the spec of revision 1: it greets")
	if got := s.Get(p.Host(), "/"); strings.HasSuffix(got, " two") {
		p.Errorf("after the rollback it answers %q", got)
	}
	member := p.Run(p.Hosts[1], p.Bin, "rollback", s.Name)
	if member.Code != 10 {
		p.Errorf("a rollback on a member: code %d: %s", member.Code, member.Text)
	}
	has(p, p.Must(p.Hosts[1], p.Bin, "history", s.Name), "back to 1")
	p.PandoFails(5, "rollback", s.Name, "--to", "3")
}

func statsOfADay(p *labtest.Pando, s *labtest.Service) {
	id := string(s.AwaitInstances(1).Instances[0].ID)
	held := s.Hold(p.Host())
	p.Await("a connection in stats", func() (string, bool) {
		var all []struct {
			Instance    string
			Host        string
			Connections int
			PIDs        int
			CPUs        *float64 `json:"cpus"`
			Memory      int64    `json:"memory_bytes"`
		}
		text := p.Pando("stats", s.Name, "-o", "json")
		err := json.Unmarshal([]byte(text), &all)
		return text, err == nil && len(all) == 1 && all[0].Instance == id &&
			all[0].Host == p.Hosts[1] && all[0].Connections == 1 && all[0].PIDs > 0 &&
			all[0].CPUs != nil && all[0].Memory > 0
	})
	held.Stop()
	for _, host := range p.Hosts {
		has(p, p.Must(host, p.Bin, "stats"), id, "web-", "shop-", p.Hosts[0], p.Hosts[1])
	}
	p.PandoFails(4, "stats", "none")
}

func logsOfADay(p *labtest.Pando, s *labtest.Service) {
	first := s.AwaitInstances(1).Instances[0].ID
	follow := p.Start(p.Host(), p.Bin, "logs", s.Name, "-f", "-t")
	follow.AwaitText("hello from " + string(first))
	p.Pando("scale", s.Name, "2", "--wait")
	st := s.AwaitInstances(2)
	for _, i := range st.Instances {
		follow.AwaitText("hello from " + string(i.ID))
	}
	for _, host := range p.Hosts {
		has(p, p.Must(host, p.Bin, "logs", s.Name, "--since", "1h", "--grep", "^hello"),
			string(st.Instances[0].ID)+"  hello", string(st.Instances[1].ID)+"  hello")
	}
	has(p, p.Pando("logs", s.Name, "--grep", "goodbye"), "no line of "+s.Name+" is as asked for")
	if out := follow.Stop(); out.Code != 130 ||
		strings.Count(out.Text, "Z  hello from "+string(first)) != 1 {
		p.Errorf("logs -f: code %d\n%s", out.Code, out.Text)
	}
	p.Pando("scale", s.Name, "auto")
	s.AwaitInstances(1)
	s.Kill(s.Status().Instances[0].ID)
	s.Await("another instance", func(st pando.ServiceStatus) bool {
		return st.InRotation == 1 && st.Instances[0].ID != first
	})
	has(p, p.Pando("logs", s.Name, "--instance", string(first)), "hello from "+string(first))
}
