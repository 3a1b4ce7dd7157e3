package control

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
)

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
