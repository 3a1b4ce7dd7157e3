package control

import (
	"fmt"
	"testing"
	"time"

	"pando.run/pando"
)

// slowly lets virtual time pass on a host that needs some time to start an instance, and as long to
// end one.
func (l leadership) slowly(t *testing.T, d, step time.Duration) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		if err := pando.Sleep(t.Context(), l.mirror.Clock, 50*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		for _, i := range l.instances() {
			var txn pando.Txn
			switch {
			case time.Since(i.Since) < step:
				continue
			case i.Phase == pando.PhasePlaced:
				i.Phase, i.Since = pando.PhaseInRotation, time.Now()
				txn.Put = []pando.Stored{i}
			case i.Phase == pando.PhaseDraining:
				txn.Delete = []pando.Key{i.Key()}
			default:
				continue
			}
			l.mirror.Mu.Lock()
			txn.If = []pando.Condition{l.mirror.World.Instances[i.ID].If()}
			l.mirror.Mu.Unlock()
			if _, err := l.registry.Commit(t.Context(), txn); err != nil {
				t.Logf("the host tries %s again: %v", i.ID, err)
			}
		}
	}
}

// Deploys that overtake each other end with the newest one in service and with the number of
// instances that the service had, on a fast host and on a slow one.
func TestOvertakingDeploysKeepTheNumber(t *testing.T) {
	for name, c := range map[string]struct {
		gap, step time.Duration
		order     pando.RolloutOrder
		fresh     bool // none has served before
	}{
		"fast":             {gap: 80 * time.Millisecond, step: time.Millisecond},
		"fast, one by one": {gap: 1200 * time.Millisecond, step: time.Millisecond},
		"slow":             {gap: 80 * time.Millisecond, step: 10 * time.Second},
		"slow, stop-first": {gap: 80 * time.Millisecond, step: 10 * time.Second, order: pando.StopFirst},
		"slow, the first":  {gap: 80 * time.Millisecond, step: 10 * time.Second, fresh: true},
	} {
		t.Run(name, func(t *testing.T) {
			lead(t, time.Millisecond, func(t *testing.T, l leadership) {
				if c.fresh {
					if err := l.Remove(t.Context(), web, false, anna); err != nil {
						t.Fatal(err)
					}
					l.slowly(t, time.Minute, time.Millisecond)
				}
				deploy := func(n int) {
					t.Helper()
					_, err := l.Deploy(t.Context(), pando.Spec{Name: "web",
						Command: []string{"web", fmt.Sprint(n)}, Scale: pando.Scale{Min: 2, Max: 12},
						Rollout: pando.Rollout{Order: c.order, HealthySeconds: 1}}, anna)
					if err != nil {
						t.Fatal(err)
					}
				}
				if !c.fresh {
					deploy(0)
					l.slowly(t, 2*time.Minute, c.step)
					if n := len(l.instances()); n != 2 {
						t.Fatalf("%d instances before", n)
					}
				}
				most := 0
				for n := range 25 {
					deploy(n + 1)
					l.slowly(t, c.gap, c.step)
					most = max(most, len(l.instances()))
				}
				l.slowly(t, 3*time.Minute, c.step)
				st, err := l.Service(t.Context(), web)
				if err != nil {
					t.Fatal(err)
				}
				if got := l.revisions(); st.Phase != pando.ServiceServing || st.Current != st.Latest ||
					len(got) != 1 || got[st.Latest] != 2 || st.Rolling != 0 {
					t.Errorf("revision %d of %d is current, instances by revision %v, it is %s: %s",
						st.Current, st.Latest, got, st.Phase, st.Reason)
				}
				if capacity := 2 + 1; c.step > time.Second && most > 25+capacity {
					t.Errorf("%d instances at once", most)
				}
			})
		})
	}
}

// A rollout that goes back, and one that is undone, come back to the number that was there before,
// although it is more than the least and some had left already.
func TestARollbackComesBackToTheNumber(t *testing.T) {
	lead(t, time.Millisecond, func(t *testing.T, l leadership) {
		deploy := func(text string) {
			t.Helper()
			if _, err := l.Deploy(t.Context(), pando.Spec{Name: "web", Command: []string{"web", text},
				Scale: pando.Scale{Min: 1, Max: 9}}, anna); err != nil {
				t.Fatal(err)
			}
		}
		deploy("one")
		l.pass(t, time.Minute)
		for range 4 {
			if _, err := l.Answer(t.Context(), l.host, l.ask(), func() {}); err != nil {
				t.Fatal(err)
			}
			l.pass(t, 5*time.Second)
		}
		was := l.revisions()
		if was[2] != 5 {
			t.Fatalf("instances by revision %v", was)
		}
		deploy("two")
		l.pass(t, 3*time.Second)
		if got := l.revisions(); got[2] >= 5 || got[3] == 0 {
			t.Fatalf("the rollout has replaced nothing yet: %v", got)
		}
		if _, err := l.UndoRollout(t.Context(), web, "", anna); err != nil {
			t.Fatal(err)
		}
		l.pass(t, time.Minute)
		st, err := l.Service(t.Context(), web)
		if got := l.revisions(); err != nil || got[2] != 5 || len(got) != 1 || st.Rolling != 0 {
			t.Errorf("after the undo: instances by revision %v of %+v: %v", got, st.Service, err)
		}
	})
}
