package control

import (
	"errors"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
)

// The status of a service names what its drains wait for, and an operator ends them: of a rollout or
// a scale event, and of a removal.
func TestAnOperatorSeesAndEndsDrains(t *testing.T) {
	led(t, func(t *testing.T, l leadership) {
		settle := func() {
			if err := pando.Sleep(t.Context(), l.mirror.Clock, time.Second); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.EndDrains(t.Context(), web, anna); !errors.Is(err, pando.ErrRefused) {
			t.Errorf("an end of drains without one: %v", err)
		}
		i := l.instances()[0].Become(pando.PhaseDraining, time.Now(), "more than wanted")
		i.Waits = "waits for 1 connection, idle 27m, of 192.0.2.1:1000, without end"
		if _, err := l.registry.Commit(t.Context(), pando.Txn{Put: []pando.Stored{i}}); err != nil {
			t.Fatal(err)
		}
		settle()
		st, err := l.Service(t.Context(), web)
		if want := string(i.ID) + " " + i.Waits; err != nil || !strings.HasSuffix(st.Reason, want) {
			t.Errorf("the status says %q (%v), want %q", st.Reason, err, want)
		}
		ended := func(want int) {
			t.Helper()
			settle()
			n := 0
			for _, i := range l.instances() {
				if i.Phase == pando.PhaseDraining && i.EndNow {
					n++
				}
			}
			if n != want {
				t.Errorf("%d drains end now, want %d: %+v", n, want, l.instances())
			}
		}
		if err := l.EndDrains(t.Context(), web, anna); err != nil {
			t.Fatal(err)
		}
		ended(1)
		if err := l.Remove(t.Context(), web, true, anna); err != nil {
			t.Fatal(err)
		}
		if err := l.EndDrains(t.Context(), web, anna); err != nil {
			t.Fatal(err)
		}
		ended(len(l.instances()))
		if err := l.Remove(t.Context(), web, false, anna); err != nil {
			t.Fatal(err)
		}
		if st, err = l.Service(t.Context(), web); err != nil || !st.Purge {
			t.Errorf("a second removal keeps the state that the first one wanted to delete: %v", err)
		}
		l.pass(t, time.Minute)
	})
}
