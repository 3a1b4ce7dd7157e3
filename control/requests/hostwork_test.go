package requests

import (
	"testing"

	"pando.run/pando"
	"pando.run/pando/control/decide/decidetest"
	"pando.run/pando/control/mirror"
)

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
		tb := decidetest.Shifting(t, c.change)
		if name != "one instance" {
			tb.Put(pando.Instance{ID: "other-1", Service: pando.DefaultService("other"), Host: "h1",
				Phase: pando.PhaseInRotation})
		}
		v := &rebalancer{&desk{mirror: &mirror.Mirror{Clock: tb.Clock(), IDs: tb.IDs, World: tb.W}}}
		out, steps := v.plan(pando.RebalanceAsk{})
		if len(out.Next) != c.moves || len(out.Moving) != 0 {
			t.Errorf("%s: the plan is %+v", name, out)
			continue
		}
		if c.moves == 0 {
			continue
		}
		tb.Shift(steps[0].Shift)
		if out, _ = v.plan(pando.RebalanceAsk{}); len(out.Next) != 0 || len(out.Moving) != 1 ||
			out.Moving[0].To != steps[0].To {
			t.Errorf("%s: in progress it is %+v", name, out)
		}
	}
}
