package control

import (
	"errors"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
)

var anna = pando.Asker{Kind: pando.AskerOperator, Name: "anna"}

// pass lets virtual time pass. Placed instances serve and draining ones leave, as with an agent.
func (l leadership) pass(t *testing.T, d time.Duration) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		if err := pando.Sleep(t.Context(), l.mirror.Clock, 50*time.Millisecond); err != nil {
			t.Fatal(err)
		}
		for _, i := range l.instances() {
			var txn pando.Txn
			switch i.Phase {
			case pando.PhasePlaced:
				i.Phase, i.Since = pando.PhaseInRotation, time.Now()
				txn.Put = []pando.Stored{i}
			case pando.PhaseDraining:
				txn.Delete = []pando.Key{i.Key()}
			default:
				continue
			}
			if _, err := l.registry.Commit(t.Context(), txn); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func (l leadership) instances() []pando.Instance {
	l.mirror.Mu.Lock()
	defer l.mirror.Mu.Unlock()
	return l.mirror.World.Of(web)
}

// revisions counts the instances of each revision.
func (l leadership) revisions() map[int]int {
	out := map[int]int{}
	for _, i := range l.instances() {
		out[i.Revision]++
	}
	return out
}

// roll deploys a spec that differs from the others by its text.
func (l leadership) roll(t *testing.T, text string) pando.ServiceStatus {
	t.Helper()
	st, err := l.Deploy(t.Context(), pando.Spec{Name: "web", Command: []string{"web", text},
		Scale: pando.Scale{Min: 3, Max: 3}, Rollout: pando.Rollout{HealthySeconds: 5}}, anna)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func (l leadership) rollout(t *testing.T) pando.RolloutStatus {
	t.Helper()
	st, err := l.Rollout(t.Context(), web)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// led runs a test with a service of three instances of revision 2.
func led(t *testing.T, test func(t *testing.T, l leadership)) {
	lead(t, time.Millisecond, func(t *testing.T, l leadership) {
		l.roll(t, "two")
		l.pass(t, time.Minute)
		if st := l.rollout(t); st.Rolling || st.From != 2 || l.revisions()[2] != 3 ||
			st.Outcome.State != pando.RevisionCurrent {
			t.Fatalf("%+v, %v", st, l.revisions())
		}
		test(t, l)
	})
}

func TestAPausedRolloutHoldsUntilItIsResumed(t *testing.T) {
	led(t, func(t *testing.T, l leadership) {
		if _, err := l.PauseRollout(t.Context(), web, "", anna); !errors.Is(err, pando.ErrRefused) ||
			!strings.Contains(err.Error(), "`pando rollout status web`") {
			t.Errorf("a pause without a rollout: %v", err)
		}
		l.roll(t, "three")
		l.pass(t, time.Second)
		st, err := l.PauseRollout(t.Context(), web, "lunch", anna)
		if err != nil || st.Trial.Paused.Reason != "lunch" || st.Trial.Paused.By.Name != "anna" {
			t.Fatalf("%+v: %v", st, err)
		}
		l.pass(t, time.Minute)
		was := l.revisions()
		gone := l.instances()[0]
		lost := pando.Txn{Delete: []pando.Key{gone.Key()}}
		if _, err := l.registry.Commit(t.Context(), lost); err != nil {
			t.Fatal(err)
		}
		l.pass(t, time.Hour)
		st = l.rollout(t)
		if got := l.revisions(); got[2]+got[3] < 3 || got[3] != was[3] || got[3] != 1 || !st.Rolling ||
			st.Next != "the rollout is paused" || st.Trial.Age(time.Now()) > 2*time.Second {
			t.Fatalf("%v, then %v: %+v", was, got, st)
		}
		if st, err = l.ResumeRollout(t.Context(), web, anna); err != nil || st.Trial.Paused != nil {
			t.Fatalf("%+v: %v", st, err)
		}
		l.pass(t, time.Minute)
		if st = l.rollout(t); st.Rolling || st.From != 3 || l.revisions()[3] != 3 || st.Trial != nil {
			t.Errorf("%+v, %v", st, l.revisions())
		}
	})
}

func TestAnUndoneRolloutKeepsTheInstancesThatServe(t *testing.T) {
	led(t, func(t *testing.T, l leadership) {
		before := l.instances()
		l.roll(t, "three")
		l.pass(t, time.Second)
		if _, err := l.PauseRollout(t.Context(), web, "", anna); err != nil { // an undo ends the pause
			t.Fatal(err)
		}
		st, err := l.UndoRollout(t.Context(), web, "slow pages", anna)
		if err != nil || st.Target != 2 || st.Current != 2 || st.Trial != nil {
			t.Fatalf("%+v: %v", st, err)
		}
		l.pass(t, time.Minute)
		for n, i := range l.instances() {
			if i.ID != before[n].ID {
				t.Errorf("%s of revision %d is there, want %s", i.ID, i.Revision, before[n].ID)
			}
		}
		end := l.rollout(t).Outcome
		if end.Revision != 3 || end.State != pando.RevisionFailed ||
			end.Reason != "undone by operator anna: slow pages" {
			t.Errorf("%+v", end)
		}
		if st, err = l.UndoRollout(t.Context(), web, "", anna); err != nil || st.Target != 4 {
			t.Errorf("outside a rollout, undo deploys the spec that served before: %+v: %v", st, err)
		}
	})
}

// Two deploys never mix: the newer one replaces the older one, at any moment of its rollout.
func TestTwoDeploysNeverMix(t *testing.T) {
	led(t, func(t *testing.T, l leadership) {
		results := make(chan error, 2)
		for _, text := range []string{"red", "blue"} {
			go func() {
				_, err := l.Deploy(t.Context(), pando.Spec{Name: "web", Command: []string{"web", text},
					Scale: pando.Scale{Min: 3, Max: 3}, Rollout: pando.Rollout{HealthySeconds: 5}}, anna)
				results <- err
			}()
		}
		for range 2 {
			if err := <-results; err != nil {
				t.Fatal(err)
			}
		}
		l.pass(t, 4*time.Second)
		if got := l.revisions(); got[2] != 3 || got[3] > 0 || got[4] != 1 {
			t.Errorf("instances of the overtaken revision serve beside the newer one: %v", got)
		}
		l.pass(t, time.Minute)
		all, err := l.Revisions(t.Context(), web)
		if err != nil || l.revisions()[4] != 3 || len(all) != 4 ||
			all[2].State != pando.RevisionReplaced || all[3].State != pando.RevisionCurrent {
			t.Errorf("%v: %v %+v", l.revisions(), err, all)
		}
	})
}

// A newer deploy that fails goes back to the revision that serves, not to the one it replaced.
func TestAReplacedRevisionIsNoFormerOne(t *testing.T) {
	led(t, func(t *testing.T, l leadership) {
		l.roll(t, "three")
		l.pass(t, time.Second)
		l.roll(t, "four")
		l.pass(t, time.Second)
		if _, err := l.UndoRollout(t.Context(), web, "", anna); err != nil {
			t.Fatal(err)
		}
		l.pass(t, time.Minute)
		if got := l.revisions(); len(got) != 1 || got[2] != 3 {
			t.Errorf("%v", got)
		}
	})
}
