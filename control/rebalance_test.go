package control

import (
	"strings"
	"testing"
	"time"

	"pando.run/pando"
)

// shifting returns a table with web in rotation on h1, and two empty hosts.
func shifting(t *testing.T, change func(*pando.Spec)) *table {
	tb := newTable(t)
	tb.members("h1", "h2", "h3")
	tb.put(pando.Host{Name: "h1", Tunnel: true})
	tb.deploy(1, change)
	for range 3 {
		tb.settle()
		tb.run()
		tb.now = tb.now.Add(2 * time.Second)
	}
	tb.settle()
	// h3 is less loaded than h2, and comes first without a target.
	tb.put(pando.Host{Name: "h2", Tunnel: true}, pando.Host{Name: "h3", Tunnel: true})
	return tb
}

func (tb *table) shift(s pando.Shift) {
	svc := tb.w.Services[web].V
	svc.Shift = &s
	tb.put(svc)
}

// A shift moves what it names to the host that it names, and nothing else, without a gap.
func TestAShiftMovesInstancesStartFirst(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*pando.Spec)
		one    bool
		want   int // on h3
	}{
		"the home": {want: 2},
		"one of a spread": {change: func(s *pando.Spec) { s.Place.Spread = pando.SpreadHost }, one: true,
			want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			tb := shifting(t, c.change)
			s := pando.Shift{From: "h1", To: "h3"}
			if c.one {
				s.Instances = []pando.InstanceID{tb.w.Of(web)[0].ID}
			}
			tb.shift(s)
			least := 2
			for range 10 {
				tb.settle()
				least = min(least, tb.count(pando.PhaseInRotation))
				tb.trickle()
				tb.now = tb.now.Add(2 * time.Second)
			}
			tb.settle()
			if n := tb.on("h3", pando.PhaseInRotation); n != c.want || least != 2 || len(tb.w.Of(web)) != 2 {
				t.Errorf("%d on h3, want %d; %d served meanwhile: %+v", n, c.want, least, tb.w.Of(web))
			}
			if s := tb.w.Services[web].V.Shift; s != nil {
				t.Errorf("the shift has not ended: %+v", s)
			}
		})
	}
}

func TestAShiftThatCannotGoOnIsGivenUp(t *testing.T) {
	for want, spoil := range map[string]func(*table){
		"takes no new instances": func(tb *table) { tb.mark("h3", true) },
		"its state is on h1":     func(tb *table) { tb.put(pando.StateHead{Service: web, Host: "h1"}) },
		"failures without": func(tb *table) {
			for range 40 {
				tb.settle()
				for _, i := range tb.w.Of(web) {
					if i.Host == "h3" {
						tb.fail(i, 1)
					}
				}
				tb.now = tb.now.Add(time.Minute)
			}
		},
	} {
		tb := shifting(t, nil)
		tb.shift(pando.Shift{From: "h1", To: "h3"})
		spoil(tb)
		tb.settle()
		if tb.w.Services[web].V.Shift != nil || tb.on("h1", pando.PhaseInRotation) != 2 {
			t.Errorf("%s: the shift is %+v with %+v", want, tb.w.Services[web].V.Shift, tb.w.Of(web))
		}
		noted := false
		for _, v := range tb.w.DecisionsOf(web) {
			noted = noted || v.Kind == pando.DecidedMove && strings.Contains(v.Reason, want)
		}
		if !noted {
			t.Errorf("%s is not on record", want)
		}
	}
}

// A plan moves services that may move, and names those on their way.
func TestARebalancePlansWhatMayMove(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*pando.Spec)
		moves  int
	}{
		"one instance":       {func(s *pando.Spec) { s.Scale = pando.Scale{Min: 1, Max: 4} }, 0},
		"beside another one": {nil, 1},
		"spread":             {func(s *pando.Spec) { s.Place.Spread = pando.SpreadHost }, 1},
		"one writer":         {func(s *pando.Spec) { s.Scale = pando.Scale{Min: 1, Max: 1} }, 0},
		"pinned to a host":   {func(s *pando.Spec) { s.Place.Only = "host=h1" }, 0},
		"volumes": {func(s *pando.Spec) {
			s.Volumes = []pando.Volume{{Name: "data", Path: "/data"}}
		}, 0},
	} {
		tb := shifting(t, c.change)
		if name != "one instance" {
			tb.put(pando.Instance{ID: "other-1", Service: pando.DefaultService("other"), Host: "h1",
				Phase: pando.PhaseInRotation})
		}
		v := &view{Config: Config{Clock: stalled{tb.now}, IDs: tb.ids}, world: tb.w}
		out, steps := v.rebalance(pando.RebalanceAsk{})
		if len(out.Next) != c.moves || len(out.Moving) != 0 {
			t.Errorf("%s: the plan is %+v", name, out)
			continue
		}
		if c.moves == 0 {
			continue
		}
		tb.shift(steps[0].Shift)
		if out, _ = v.rebalance(pando.RebalanceAsk{}); len(out.Next) != 0 || len(out.Moving) != 1 ||
			out.Moving[0].To != steps[0].To {
			t.Errorf("%s: in progress it is %+v", name, out)
		}
	}
}
