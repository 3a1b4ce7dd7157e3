package agent

import (
	"slices"
	"testing"
	"testing/synctest"

	"pando.run/pando"
)

// A service with a home is reached by a route, as long as no instance is on another host.
func TestOnlyAServiceOnSeveralHostsNeedsATunnel(t *testing.T) {
	hosts := func(names ...pando.HostName) pando.Endpoints { return pando.Endpoints{Hosts: names} }
	for name, c := range map[string]struct {
		home pando.HostName
		at   pando.Endpoints
		want bool
	}{
		"at home":                {"h1", hosts("h1"), false},
		"without instances":      {"h1", hosts(), false},
		"back at home, one left": {"h1", hosts("h1", "h2"), true},
		"spread, on one host":    {"", hosts("h2"), true},
		"spread":                 {"", hosts("h1", "h2"), true},
	} {
		if got := isSpread(pando.Service{Home: c.home}, c.at); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// seat is an instance of the service on a host, for a test of the way to it.
type seat struct {
	host  pando.HostName
	phase pando.Phase
}

// TestOldFlowsFindTheHostOfTheirInstance covers each way in which the last instance of a service
// leaves. A host without memory of the flows forwards their packets to the host that has them, and
// no two hosts forward to each other.
func TestOldFlowsFindTheHostOfTheirInstance(t *testing.T) {
	const takes, drains, placed = pando.PhaseInRotation, pando.PhaseDraining, pando.PhasePlaced
	for name, c := range map[string]struct {
		home  pando.HostName
		away  pando.HostName
		seats []seat
		want  pando.HostName
	}{
		"it serves":                       {"h2", "", []seat{{"h2", takes}}, "h2"},
		"removed, or scaled to zero":      {"h2", "", []seat{{"h2", drains}, {"h2", drains}}, "h2"},
		"the home moved, nothing started": {"h3", "", []seat{{"h2", drains}}, "h2"},
		"its successor starts here":       {"h1", "", []seat{{"h1", placed}, {"h2", drains}}, "h2"},
		"its successor serves elsewhere":  {"h3", "", []seat{{"h2", drains}, {"h3", takes}}, "h3"},
		"both hosts drain, home here":     {"h1", "", []seat{{"h1", drains}, {"h2", drains}}, ""},
		"both hosts drain, home there":    {"h2", "", []seat{{"h1", drains}, {"h2", drains}}, ""},
		"spread, and all drain":           {"", "", []seat{{"h2", drains}, {"h3", drains}}, "h2"},
		"the home drains, and others":     {"h3", "", []seat{{"h2", drains}, {"h3", drains}}, "h3"},
		"drains here, taken over there":   {"h2", "", []seat{{"h1", drains}, {"h2", takes}}, "h2"},
		"its first instance starts":       {"h2", "", []seat{{"h2", placed}}, ""},
		"the agent there is away":         {"h2", "h2", []seat{{"h2", takes}}, "h2"},
		"away, and one that is here":      {"h2", "h2", []seat{{"h2", takes}, {"h3", drains}}, "h3"},
		"without an instance":             {"h2", "", nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			onBench(t, func(b *bench) {
				b.seats(c.home, c.away, c.seats)
				table, _ := tables{b.agent}.Table(web)
				want, _ := tables{b.agent}.find(c.want)
				if table.Via4 != want.Address || table.Via6 != want.Address6 {
					t.Errorf("packets pass to %s, want %s (%s)", table.Via4, want.Address, c.want)
				}
			})
		})
	}
}

// seats writes hosts h2 and h3 and the endpoints of the service. The agent of away has no lease.
func (b *bench) seats(home, away pando.HostName, seats []seat) {
	b.Helper()
	e := pando.Endpoints{Hosts: []pando.HostName{"h1", "h2", "h3"}, Service: pando.Service{
		ServiceKey: web, VIP4: pando.VIPs4.Addr().Next().Next(), Current: 1, Target: 1, Latest: 1,
		Home: home,
	}}
	put := []pando.Stored{e.Service}
	for n, name := range e.Hosts[1:] {
		v4, v6 := pando.InstanceRange(n + 1)
		if put = append(put, pando.Member{Name: name, Slot: n + 1, Address: v4.Addr(),
			Address6: v6.Addr(), Server: true}); name != away {
			put = append(put, pando.Host{Name: name, Slot: n + 1, Address: v4.Addr(),
				Address6: v6.Addr(), Instances4: v4, Instances6: v6, Tunnel: true})
		}
	}
	for n, s := range seats {
		e.Seats = append(e.Seats, pando.Seat{Instance: pando.InstanceID("web-" + string(rune('a'+n))),
			Host: slices.Index(e.Hosts, s.host), Phase: s.phase, Revision: 1, Weight: 100})
	}
	_, err := b.registry.Commit(b.ctx, pando.Txn{Put: append(put, e)})
	b.ok(err)
	synctest.Wait()
}
