package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// The first server is one like the others: it leaves, and its host stays a member with its
// instances. The last majority does not end by mistake.
func TestAServerLeavesAndTheMajorityStays(t *testing.T) {
	t.Parallel()
	p := threeServers(t)
	one, two, three := p.Hosts[0], p.Hosts[1], p.Hosts[2]
	homes, held := onEveryHost(p)
	before := lives(p, homes)
	lead := leader(p, two)
	has(t, p.Must(one, p.Bin, "hosts"), lead, "leader, agent", "server, agent")

	down := func(h string, flags ...string) labtest.Output {
		place := []string{p.Bin, "down", "--data-dir", p.Data(h), "--host", h}
		return p.Run(h, append(place, flags...)...)
	}
	p.KillServer(three)
	p.Await("the list to show the silent server", func() (string, bool) {
		out := p.Run(two, p.Bin, "servers", "ls")
		return out.Text, strings.Contains(out.Text, "silent")
	})
	out := down(two)
	if has(t, out.Text, "1 of 3 servers would stay", "start "+three, "--force"); out.Code != 5 {
		t.Errorf("exit code %d, want 5: %s", out.Code, out.Text)
	}
	out = p.Run(two, p.Bin, "servers", "rm", one)
	if has(t, out.Text, "1 of the 2 other servers answer", three); out.Code == 0 {
		t.Error("the quorum was given up")
	}
	p.Up(three)
	p.Await("every server to answer", func() (string, bool) {
		out := p.Run(two, p.Bin, "servers", "ls")
		return out.Text, out.Code == 0 && !strings.Contains(out.Text, "silent")
	})
	has(t, down(three, "--purge", "--now").Text, "`pando servers rm "+three+"`")

	p.Await("the first server to leave", func() (string, bool) {
		out := p.Run(two, p.Bin, "servers", "rm", one) // etcd wants 5 s of answers first
		return out.Text, out.Code == 0 || strings.Contains(out.Text, "not found")
	})
	p.Await("its host to be a member without a server", func() (string, bool) {
		var all []pando.HostStatus
		out := p.Run(one, p.Bin, "hosts", "-o", "json")
		if out.Code != 0 || json.Unmarshal([]byte(out.Text), &all) != nil {
			return out.Text, false
		}
		for _, h := range all {
			if string(h.Name) == one {
				return out.Text, !h.Server && h.State == pando.HostHere
			}
		}
		return out.Text, false
	})
	p.Await("the end of the removed server", func() (string, bool) {
		out := p.Run(one, p.Bin, "servers", "ls")
		return out.Text, strings.Contains(out.Text, "no server runs on this host")
	})
	p.Up(one) // no server starts
	leader(p, two)
	for _, s := range homes {
		asksGoOn(p, s)
	}
	for _, h := range held {
		if out := h.Stop(); out.Code != 0 {
			t.Errorf("a connection was broken: %s", out.Text)
		}
	}
	if after := lives(p, homes); after != before {
		t.Errorf("the first instances were %s, and are %s", before, after)
	}
	has(t, down(two).Text, "1 of 2 servers would stay", "`pando servers rm "+two+"`")
}

// leader returns the host of the leading server.
func leader(p *labtest.Pando, from string) (name string) {
	p.Helper()
	p.Await("a leader", func() (string, bool) {
		var all []struct {
			Name  string
			Leads bool
		}
		out := p.Run(from, p.Bin, "servers", "ls", "-o", "json")
		if out.Code != 0 || json.Unmarshal([]byte(out.Text), &all) != nil {
			return out.Text, false
		}
		for _, s := range all {
			if s.Leads {
				name = s.Name
			}
		}
		return out.Text, name != ""
	})
	return name
}
