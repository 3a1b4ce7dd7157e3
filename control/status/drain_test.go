package status

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide/decidetest"
	"pando.run/pando/control/mirror"
)

var web = decidetest.Web

func TestADrainedHostLosesNoInstanceBeforeOthersServe(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*pando.Spec)
		grown  int // instances in rotation before the drain, beyond the least
		least  int
	}{
		"one home":          {nil, 0, 2},
		"one home, grown":   {nil, 2, 4},
		"one instance":      {func(s *pando.Spec) { s.Scale = pando.Scale{Min: 1, Max: 4} }, 0, 1},
		"one home, reserve": {func(s *pando.Spec) { s.Scale.Warm = 1 }, 0, 2},
		"stop-first":        {func(s *pando.Spec) { s.Rollout.Order = pando.StopFirst }, 0, 1},
		"spread": {func(s *pando.Spec) {
			s.Scale, s.Place.Spread = pando.Scale{Min: 3, Max: 6}, pando.SpreadHost
		}, 0, 3},
		"spread, surge": {func(s *pando.Spec) {
			s.Scale, s.Place.Spread = pando.Scale{Min: 6, Max: 6, Warm: 2}, pando.SpreadHost
			s.Rollout.Surge = 3
		}, 0, 6},
		"one writer": {func(s *pando.Spec) { s.Scale = pando.Scale{Min: 1, Max: 1} }, 0, 0},
		"endpoints": {func(s *pando.Spec) {
			s.Command, s.Scale = nil, pando.Scale{}
			s.Ports = []pando.Port{{Published: 80, Target: 8080, Protocol: pando.TCP}}
			for n := range byte(2) {
				s.Endpoints = append(s.Endpoints,
					pando.External{Address: netip.AddrFrom4([4]byte{192, 0, 2, n})})
			}
		}, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			tb := decidetest.New(t)
			tb.Members("h1", "h2", "h3")
			tb.Put(pando.Host{Name: "h1", Tunnel: true})
			tb.Put(pando.Host{Name: "h2", Tunnel: true}, pando.Host{Name: "h3", Tunnel: true, CPUs: 1})
			tb.Deploy(1, c.change)
			for range 4 {
				tb.Settle()
				tb.Run()
				tb.Now = tb.Now.Add(2 * time.Second)
			}
			for range c.grown {
				tb.Ask(pando.VerbReplicate, tb.W.Of(web)[0].ID)
				tb.Settle()
				tb.Now = tb.Now.Add(2 * time.Second)
			}
			tb.Run()
			tb.Settle()
			wanted := tb.Count(pando.PhaseInRotation)
			tb.Mark("h1", true)
			if got := tb.SettleDrain("h1"); got < c.least {
				t.Errorf("%d served meanwhile, want %d", got, c.least)
			}
			tb.Now = tb.Now.Add(time.Minute)
			tb.Run()
			tb.Settle()
			if n := tb.Count(pando.PhaseInRotation); n != wanted {
				t.Errorf("%d in rotation after the drain, %d before", n, wanted)
			}
			if st := leftOn(tb, "h1"); st.Count != 0 || st.Drain == nil {
				t.Errorf("left is %+v", st)
			}
			tb.Now = tb.Now.Add(time.Minute)
			tb.Mark("h1", false)
			tb.Settle()
			if c.change == nil && tb.On("h1", pando.PhasePlaced) != 0 {
				t.Errorf("the end of the drain moves instances back: %+v", tb.W.Of(web))
			}
		})
	}
}

// A state with copies moves to another copy before its instances do. Without a whole copy elsewhere
// they wait, and the reason is named.
func TestAStateWithCopiesLeavesADrainedHost(t *testing.T) {
	tb := decidetest.New(t)
	tb.Members("h1", "h2", "h3")
	tb.Put(pando.Host{Name: "h1", Copies: true, Tunnel: true})
	tb.Deploy(1, func(s *pando.Spec) {
		s.State, s.StateCopies = map[string]pando.StateType{"total": "counter"}, 2
	})
	for range 3 {
		tb.Settle()
		tb.Run()
		tb.Now = tb.Now.Add(2 * time.Second)
	}
	tb.Put(pando.Host{Name: "h2", Copies: true, Tunnel: true})
	tb.Settle()
	k := tb.W.Keepers[web].V
	if k.Host != "h1" || len(k.Joining) != 1 {
		t.Fatalf("the keeper is %+v", k)
	}
	tb.Mark("h1", true)
	for range 3 {
		tb.Settle()
		tb.Run()
		tb.Now = tb.Now.Add(2 * time.Second)
	}
	st := leftOn(tb, "h1")
	if st.Count != 2 || st.Stays != 0 || !strings.Contains(st.Left[0].Reason, "no other host has a whole copy") {
		t.Errorf("without a copy, left is %+v", st)
	}
	k = tb.W.Keepers[web].V
	k.Copies, k.Joining = append(k.Copies, k.Joining...), nil // the copy is whole
	tb.Put(k)
	if least := tb.SettleDrain("h1"); least != 2 {
		t.Errorf("%d served meanwhile", least)
	}
	if k = tb.W.Keepers[web].V; k.Host != "h2" || tb.On("h2", pando.PhaseInRotation) != 2 {
		t.Errorf("the keeper is %+v, and %d serve on h2", k, tb.On("h2", pando.PhaseInRotation))
	}
}

func TestWhatCannotLeaveADrainedHostIsNamedAndServes(t *testing.T) {
	for want, c := range map[string]struct {
		change func(*pando.Spec)
		more   []pando.Stored
	}{
		"its volumes are on h1 and do not move; `pando cp` copies": {change: func(s *pando.Spec) {
			s.Volumes = []pando.Volume{{Name: "data", Path: "/data"}}
		}},
		"its state is on h1": {more: []pando.Stored{pando.StateHead{Service: web, Host: "h1"}}},
		"no other host takes its instances": {change: func(s *pando.Spec) {
			s.Place.Only = "zone=a"
		}},
		"no host has room":      {change: func(s *pando.Spec) { s.Resources.MemoryBytes = 100 }},
		"its rollout is paused": {more: []pando.Stored{pando.Revision{Service: web, Number: 2}}},
	} {
		t.Run(want, func(t *testing.T) {
			tb := decidetest.New(t)
			tb.Members("h1", "h2")
			tb.Put(pando.Host{Name: "h1", Labels: "zone=a"})
			tb.Deploy(1, c.change)
			for range 3 {
				tb.Settle()
				tb.Run()
				tb.Now = tb.Now.Add(2 * time.Second)
			}
			tb.Settle()
			tb.Put(pando.Host{Name: "h2", Memory: 50})
			if len(c.more) > 0 {
				tb.Put(c.more...)
			}
			if strings.Contains(want, "paused") {
				tb.Deploy(2, nil)
				svc := tb.W.Services[web].V
				svc.Trial = &pando.Trial{Began: tb.Now, Paused: &pando.Pause{At: tb.Now}}
				tb.Put(svc)
			}
			tb.Mark("h1", true)
			for range 3 {
				tb.Settle()
				tb.Run()
				tb.Now = tb.Now.Add(time.Minute)
			}
			if n := tb.On("h1", pando.PhaseInRotation); n != 2 || len(tb.W.Of(web)) != 2 {
				t.Errorf("%d of %d serve on h1", n, len(tb.W.Of(web)))
			}
			st := leftOn(tb, "h1")
			if st.Stays != 2 || !strings.Contains(st.Left[0].Reason, want) {
				t.Errorf("left is %+v", st)
			}
			if text := stayingText(st); !strings.Contains(text, "web: ") || !strings.Contains(text, want) {
				t.Errorf("the line of the host is %q", text)
			}
			noted := 0
			for _, v := range tb.W.DecisionsOf(web) {
				if v.Kind == pando.DecidedHostDrain && strings.Contains(v.Reason, want) {
					noted++
				}
			}
			if noted != 1 && !strings.Contains(want, "paused") {
				t.Errorf("%d notes are on record", noted)
			}
		})
	}
}

// A drained host that is away keeps its instances, also those that were draining before. The drain
// names them at once and does not wait for them.
func TestWhatIsOnADrainedHostThatIsAwayStays(t *testing.T) {
	tb := decidetest.New(t)
	tb.Members("h1", "h2")
	tb.Deploy(1, nil)
	for _, phase := range []pando.Phase{pando.PhaseInRotation, pando.PhaseDraining} {
		tb.Put(pando.Instance{Service: web, Host: "h3", ID: pando.InstanceID("web-" + phase), Phase: phase})
	}
	tb.Members("h3")
	tb.Mark("h3", true)
	tb.Lose("h3")
	st := leftOn(tb, "h3")
	if st.Count != 2 || st.Stays != 2 || !strings.Contains(st.Left[0].Reason, "its host is away") {
		t.Errorf("left is %+v", st)
	}
}

// leftOn returns what is left on a host.
func leftOn(tb *decidetest.Table, h pando.HostName) pando.HostDrainStatus {
	return Drain(&mirror.Mirror{Clock: tb.Clock(), IDs: tb.IDs, World: tb.W}, tb.W.Members[h].V)
}
