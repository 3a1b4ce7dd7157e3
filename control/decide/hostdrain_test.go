package decide_test

import (
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide/decidetest"
)

// An instance on a drained host serves until another one has been healthy for as long as a rollout
// wants it.
func TestADrainedHostServesUntilOthersAreHealthy(t *testing.T) {
	for name, change := range map[string]func(*pando.Spec){
		"one home": nil,
		"spread":   func(s *pando.Spec) { s.Place.Spread, s.Scale.Min = pando.SpreadHost, 2 },
	} {
		tb := decidetest.New(t)
		tb.Members("h1", "h2", "h3")
		tb.Put(pando.Host{Name: "h1", Tunnel: true})
		tb.Deploy(1, change)
		for range 3 {
			tb.Settle()
			tb.Run()
			tb.Now = tb.Now.Add(2 * time.Second)
		}
		tb.Put(pando.Host{Name: "h2", Tunnel: true}, pando.Host{Name: "h3", Tunnel: true})
		tb.Mark("h1", true)
		for range 3 {
			tb.Settle()
			tb.Run()
		}
		tb.Settle()
		if n := tb.On("h1", pando.PhaseInRotation); n != 2 {
			t.Errorf("%s: %d of 2 serve on h1 while no other is healthy", name, n)
		}
		tb.Now = tb.Now.Add(2 * time.Second)
		tb.Settle()
		if n := tb.On("h1", pando.PhaseDraining); n == 0 {
			t.Errorf("%s: none drains on h1: %+v", name, tb.W.Of(web))
		}
	}
}

// A home with many instances moves in parts, and as many as before serve until all are there.
func TestAHomeMovesInParts(t *testing.T) {
	const n = 20
	tb := decidetest.New(t)
	tb.Members("h1", "h2")
	tb.Put(pando.Host{Name: "h1", Tunnel: true})
	tb.Deploy(1, func(s *pando.Spec) { s.Scale = pando.Scale{Min: n, Max: 2 * n} })
	for range 3 {
		tb.Settle()
		tb.Run()
		tb.Now = tb.Now.Add(2 * time.Second)
	}
	tb.Put(pando.Host{Name: "h2", Tunnel: true})
	tb.Mark("h1", true)
	parts := 0
	for range 20 {
		tb.Settle()
		if placed := tb.On("h2", pando.PhasePlaced); placed > 8 {
			t.Fatalf("%d start on h2 at the same time", placed)
		} else if placed > 0 {
			parts++
		}
		serving := tb.On("h1", pando.PhaseInRotation) + tb.On("h2", pando.PhaseInRotation)
		if drains := tb.On("h1", pando.PhaseDraining); serving < n ||
			drains > 0 && tb.On("h2", pando.PhaseInRotation) < n {
			t.Fatalf("%d serve, and %d drain on h1", serving, drains)
		}
		tb.Run()
		tb.Now = tb.Now.Add(2 * time.Second)
	}
	if on := tb.On("h2", pando.PhaseInRotation); on != n || tb.On("h1", pando.PhaseInRotation) > 0 || parts < 3 {
		t.Errorf("%d of %d are at the new home after %d parts", on, n, parts)
	}
}

// A crash on a drained host is replaced elsewhere, and what is bound to the host says how it comes
// back.
func TestNothingStartsOnADrainedHost(t *testing.T) {
	tb := decidetest.Served(t, nil)
	tb.Members("h1", "h2")
	tb.Lose("h2")
	tb.Mark("h1", true)
	tb.Fail(tb.W.Of(web)[0], 1)
	tb.Settle()
	svc := tb.W.Services[web].V
	if tb.On("h1", pando.PhasePlaced) != 0 || !strings.Contains(svc.Reason, "no host takes instances") {
		t.Errorf("%d placed on h1: %s", tb.On("h1", pando.PhasePlaced), svc.Reason)
	}
	tb.Mark("h1", false)
	tb.Settle()
	if n := tb.On("h1", pando.PhasePlaced); n != 1 {
		t.Errorf("%d placed on h1 after the drain", n)
	}
	tb = decidetest.Served(t, func(s *pando.Spec) { s.Volumes = []pando.Volume{{Name: "data", Path: "/data"}} })
	tb.Members("h1", "h2")
	tb.Mark("h1", true)
	tb.Fail(tb.W.Of(web)[0], 1)
	tb.Settle()
	if svc := tb.W.Services[web].V; !strings.Contains(svc.Reason, "pando hosts undrain h1") {
		t.Errorf("it is %s: %s", svc.Phase, svc.Reason)
	}
}

// The clock of a new leader may be behind the clock of the former one. The order of births stays the
// order of placements.
func TestBirthsKeepTheirOrderUnderASlowerClock(t *testing.T) {
	tb := decidetest.Served(t, nil)
	before := tb.W.Of(web)
	tb.Now = tb.Now.Add(-time.Minute)
	tb.Deploy(1, func(s *pando.Spec) { s.Scale.Min, s.Scale.Max = len(before)+2, len(before)+4 })
	tb.Settle()
	now := tb.W.Of(web)
	if len(now) != len(before)+2 {
		t.Fatalf("%d instances, want 2 more than %d", len(now), len(before))
	}
	for n, i := range before {
		if now[n].ID != i.ID {
			t.Errorf("place %d of the oldest is of %s, want %s", n, now[n].ID, i.ID)
		}
	}
}
