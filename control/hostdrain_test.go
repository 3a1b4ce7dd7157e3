package control

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
)

// mark drains a host, or ends its drain.
func (tb *table) mark(h pando.HostName, drains bool) {
	m := tb.w.Members[h].V
	if m.Name, m.Drain = h, nil; drains {
		m.Drain = &pando.HostDrain{At: tb.now}
	}
	tb.put(m)
}

// members admits hosts.
func (tb *table) members(all ...pando.HostName) {
	for n, h := range all {
		tb.put(pando.Member{Name: h, Slot: n})
	}
}

// settleDrain decides and runs until no instance of web is left on a host. It returns the least
// number in rotation meanwhile.
func (tb *table) settleDrain(from pando.HostName) (least int) {
	tb.t.Helper()
	least = tb.count(pando.PhaseInRotation)
	for range 40 {
		tb.settle()
		left := 0
		for _, i := range tb.w.Of(web) {
			if i.Host == from {
				left++
			}
		}
		if least = min(least, tb.count(pando.PhaseInRotation)); left == 0 {
			return least
		}
		tb.now = tb.now.Add(2 * time.Second)
		tb.trickle()
	}
	tb.t.Fatalf("%s is not empty: %+v", from, tb.w.Of(web))
	return 0
}

// trickle is run with one start at a time.
func (tb *table) trickle() {
	started := false
	for _, i := range tb.w.Of(web) {
		switch {
		case i.Phase == pando.PhasePlaced && started:
		case i.Phase == pando.PhasePlaced:
			started = true
			i.Phase, i.Since = pando.PhaseInRotation, tb.hostNow()
			if i.Warm {
				i.Phase = pando.PhaseWarm
			}
			tb.put(i)
		case i.Phase == pando.PhaseDraining:
			tb.rev++
			tb.commit(pando.Txn{Delete: []pando.Key{i.Key()}}, tb.rev)
		}
	}
}

// left returns what is left on a host.
func (tb *table) left(h pando.HostName) pando.HostDrainStatus {
	c := &members{view: &view{Config: Config{Clock: stalled{tb.now}, IDs: tb.ids}, world: tb.w}}
	st, err := c.HostDrain(tb.t.Context(), h)
	if err != nil {
		tb.t.Fatal(err)
	}
	return st
}

type stalled struct{ now time.Time }

func (s stalled) Now() time.Time { return s.now }

func (s stalled) After(time.Duration) (<-chan time.Time, func()) { return nil, func() {} }

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
			tb := newTable(t)
			tb.members("h1", "h2", "h3")
			tb.put(pando.Host{Name: "h1", Tunnel: true})
			tb.put(pando.Host{Name: "h2", Tunnel: true}, pando.Host{Name: "h3", Tunnel: true, CPUs: 1})
			tb.deploy(1, c.change)
			for range 4 {
				tb.settle()
				tb.run()
				tb.now = tb.now.Add(2 * time.Second)
			}
			for range c.grown {
				tb.ask(pando.VerbReplicate, tb.w.Of(web)[0].ID)
				tb.settle()
				tb.now = tb.now.Add(2 * time.Second)
			}
			tb.run()
			tb.settle()
			wanted := tb.count(pando.PhaseInRotation)
			tb.mark("h1", true)
			if got := tb.settleDrain("h1"); got < c.least {
				t.Errorf("%d served meanwhile, want %d", got, c.least)
			}
			tb.now = tb.now.Add(time.Minute)
			tb.run()
			tb.settle()
			if n := tb.count(pando.PhaseInRotation); n != wanted {
				t.Errorf("%d in rotation after the drain, %d before", n, wanted)
			}
			if st := tb.left("h1"); st.Count != 0 || st.Drain == nil {
				t.Errorf("left is %+v", st)
			}
			tb.now = tb.now.Add(time.Minute)
			tb.mark("h1", false)
			tb.settle()
			if c.change == nil && tb.on("h1", pando.PhasePlaced) != 0 {
				t.Errorf("the end of the drain moves instances back: %+v", tb.w.Of(web))
			}
		})
	}
}

func TestWhatCannotLeaveADrainedHostIsNamedAndServes(t *testing.T) {
	for want, c := range map[string]struct {
		change func(*pando.Spec)
		more   []pando.Stored
	}{
		"its volumes are on h1": {change: func(s *pando.Spec) {
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
			tb := newTable(t)
			tb.members("h1", "h2")
			tb.put(pando.Host{Name: "h1", Labels: "zone=a"})
			tb.deploy(1, c.change)
			for range 3 {
				tb.settle()
				tb.run()
				tb.now = tb.now.Add(2 * time.Second)
			}
			tb.settle()
			tb.put(pando.Host{Name: "h2", Memory: 50})
			if len(c.more) > 0 {
				tb.put(c.more...)
			}
			if strings.Contains(want, "paused") {
				tb.deploy(2, nil)
				svc := tb.w.Services[web].V
				svc.Trial = &pando.Trial{Began: tb.now, Paused: &pando.Pause{At: tb.now}}
				tb.put(svc)
			}
			tb.mark("h1", true)
			for range 3 {
				tb.settle()
				tb.run()
				tb.now = tb.now.Add(time.Minute)
			}
			if n := tb.on("h1", pando.PhaseInRotation); n != 2 || len(tb.w.Of(web)) != 2 {
				t.Errorf("%d of %d serve on h1", n, len(tb.w.Of(web)))
			}
			st := tb.left("h1")
			if st.Stays != 2 || !strings.Contains(st.Left[0].Reason, want) {
				t.Errorf("left is %+v", st)
			}
			if text := stayingText(st); !strings.Contains(text, "web: ") || !strings.Contains(text, want) {
				t.Errorf("the line of the host is %q", text)
			}
			noted := 0
			for _, v := range tb.w.DecisionsOf(web) {
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

// An instance on a drained host serves until another one has been healthy for as long as a rollout
// wants it.
func TestADrainedHostServesUntilOthersAreHealthy(t *testing.T) {
	for name, change := range map[string]func(*pando.Spec){
		"one home": nil,
		"spread":   func(s *pando.Spec) { s.Place.Spread, s.Scale.Min = pando.SpreadHost, 2 },
	} {
		tb := newTable(t)
		tb.members("h1", "h2", "h3")
		tb.put(pando.Host{Name: "h1", Tunnel: true})
		tb.deploy(1, change)
		for range 3 {
			tb.settle()
			tb.run()
			tb.now = tb.now.Add(2 * time.Second)
		}
		tb.put(pando.Host{Name: "h2", Tunnel: true}, pando.Host{Name: "h3", Tunnel: true})
		tb.mark("h1", true)
		for range 3 {
			tb.settle()
			tb.run()
		}
		tb.settle()
		if n := tb.on("h1", pando.PhaseInRotation); n != 2 {
			t.Errorf("%s: %d of 2 serve on h1 while no other is healthy", name, n)
		}
		tb.now = tb.now.Add(2 * time.Second)
		tb.settle()
		if n := tb.on("h1", pando.PhaseDraining); n == 0 {
			t.Errorf("%s: none drains on h1: %+v", name, tb.w.Of(web))
		}
	}
}

// A state with copies moves to another copy before its instances do. Without a whole copy elsewhere
// they wait, and the reason is named.
func TestAStateWithCopiesLeavesADrainedHost(t *testing.T) {
	tb := newTable(t)
	tb.members("h1", "h2", "h3")
	tb.put(pando.Host{Name: "h1", Copies: true, Tunnel: true})
	tb.deploy(1, func(s *pando.Spec) {
		s.State, s.StateCopies = map[string]pando.StateType{"total": "counter"}, 2
	})
	for range 3 {
		tb.settle()
		tb.run()
		tb.now = tb.now.Add(2 * time.Second)
	}
	tb.put(pando.Host{Name: "h2", Copies: true, Tunnel: true})
	tb.settle()
	k := tb.w.Keepers[web].V
	if k.Host != "h1" || len(k.Joining) != 1 {
		t.Fatalf("the keeper is %+v", k)
	}
	tb.mark("h1", true)
	for range 3 {
		tb.settle()
		tb.run()
		tb.now = tb.now.Add(2 * time.Second)
	}
	st := tb.left("h1")
	if st.Count != 2 || st.Stays != 0 || !strings.Contains(st.Left[0].Reason, "no other host has a whole copy") {
		t.Errorf("without a copy, left is %+v", st)
	}
	k = tb.w.Keepers[web].V
	k.Copies, k.Joining = append(k.Copies, k.Joining...), nil // the copy is whole
	tb.put(k)
	if least := tb.settleDrain("h1"); least != 2 {
		t.Errorf("%d served meanwhile", least)
	}
	if k = tb.w.Keepers[web].V; k.Host != "h2" || tb.on("h2", pando.PhaseInRotation) != 2 {
		t.Errorf("the keeper is %+v, and %d serve on h2", k, tb.on("h2", pando.PhaseInRotation))
	}
}

// A crash on a drained host is replaced elsewhere, and what is bound to the host says how it comes
// back.
func TestNothingStartsOnADrainedHost(t *testing.T) {
	tb := served(t, nil)
	tb.members("h1", "h2")
	tb.lose("h2")
	tb.mark("h1", true)
	tb.fail(tb.w.Of(web)[0], 1)
	tb.settle()
	svc := tb.w.Services[web].V
	if tb.on("h1", pando.PhasePlaced) != 0 || !strings.Contains(svc.Reason, "no host takes instances") {
		t.Errorf("%d placed on h1: %s", tb.on("h1", pando.PhasePlaced), svc.Reason)
	}
	tb.mark("h1", false)
	tb.settle()
	if n := tb.on("h1", pando.PhasePlaced); n != 1 {
		t.Errorf("%d placed on h1 after the drain", n)
	}
	tb = served(t, func(s *pando.Spec) { s.Volumes = []pando.Volume{{Name: "data", Path: "/data"}} })
	tb.members("h1", "h2")
	tb.mark("h1", true)
	tb.fail(tb.w.Of(web)[0], 1)
	tb.settle()
	if svc := tb.w.Services[web].V; !strings.Contains(svc.Reason, "pando hosts undrain h1") {
		t.Errorf("it is %s: %s", svc.Phase, svc.Reason)
	}
}

// What operators set on a host stays when its certificate is renewed and when it joins again. A
// drain ends by itself in its time.
func TestTheMarksOfOperatorsOutliveARenewalAndADrainEndsInTime(t *testing.T) {
	lead(t, 0, func(t *testing.T, l leadership) {
		by := pando.Asker{Kind: pando.AskerOperator, Name: "ann"}
		own := pando.Member{Name: "h1", PublicKey: "k"}
		if _, err := l.Admit(t.Context(), own, true, nil); err != nil {
			t.Fatal(err)
		}
		_, err := l.DrainHost(t.Context(), "h1", time.Hour, by)
		if err := errors.Join(err, l.SetGrant(t.Context(), "h1", "device=kvm", true, by),
			l.SetRight(t.Context(), "h1", pando.RightExec, true, by)); err != nil {
			t.Fatal(err)
		}
		for _, byToken := range []bool{true, false} {
			m, err := l.Admit(t.Context(), own, byToken, nil)
			if err != nil || m.Drain == nil || m.Withholds([]pando.Grant{"device=kvm"}) != "" ||
				!m.Has(pando.RightExec) {
				t.Errorf("a renewal made of it %+v (%v)", m, err)
			}
		}
		time.Sleep(59 * time.Minute)
		synctest.Wait()
		st, err := l.HostDrain(t.Context(), "h1")
		if err != nil || st.Drain == nil || st.Drain.By.Name != "ann" {
			t.Errorf("it has ended early: %+v (%v)", st, err)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if st, err = l.HostDrain(t.Context(), "h1"); err != nil || st.Drain != nil {
			t.Errorf("it has not ended: %+v (%v)", st.Drain, err)
		}
		for _, do := range []func() error{
			func() error { _, err := l.DrainHost(t.Context(), "other", 0, by); return err },
			func() error { _, err := l.UndrainHost(t.Context(), "other", by); return err },
		} {
			if err := do(); !errors.Is(err, pando.ErrNotFound) {
				t.Errorf("another host: %v", err)
			}
		}
	})
}
