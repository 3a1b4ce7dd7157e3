package control

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

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
		v := &rebalancer{&operators{mirror: &mirror.Mirror{Clock: tb.Clock(), IDs: tb.IDs, World: tb.W}}}
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

// What operators set on a host stays when its certificate is renewed and when it joins again. A
// drain ends by itself in its time.
func TestTheMarksOfOperatorsOutliveARenewalAndADrainEndsInTime(t *testing.T) {
	lead(t, 0, func(t *testing.T, l leadership) {
		by := pando.Asker{Kind: pando.AskerOperator, Name: "ann"}
		own := pando.Member{Name: "h1", PublicKey: "k"}
		if _, err := l.Admit(t.Context(), own, true, nil); err != nil {
			t.Fatal(err)
		}
		_, err := l.HostWork().DrainHost(t.Context(), "h1", time.Hour, by)
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
		st, err := l.HostWork().HostDrain(t.Context(), "h1")
		if err != nil || st.Drain == nil || st.Drain.By.Name != "ann" {
			t.Errorf("it has ended early: %+v (%v)", st, err)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if st, err = l.HostWork().HostDrain(t.Context(), "h1"); err != nil || st.Drain != nil {
			t.Errorf("it has not ended: %+v (%v)", st.Drain, err)
		}
		for _, do := range []func() error{
			func() error { _, err := l.HostWork().DrainHost(t.Context(), "other", 0, by); return err },
			func() error { _, err := l.HostWork().UndrainHost(t.Context(), "other", by); return err },
		} {
			if err := do(); !errors.Is(err, pando.ErrNotFound) {
				t.Errorf("another host: %v", err)
			}
		}
	})
}
