package control

import (
	"testing"
	"time"

	"pando.run/pando"
)

// A deploy that changes numbers alone replaces no instance, and the next change of the program
// replaces all.
func TestADeployOfOtherNumbersReplacesNothing(t *testing.T) {
	led(t, func(t *testing.T, l leadership) {
		former := map[pando.InstanceID]bool{}
		for _, i := range l.instances() {
			former[i.ID] = true
		}
		spec := pando.Spec{Name: "web", Command: []string{"web", "two"},
			Scale:   pando.Scale{Min: 4, Max: 6},
			Rollout: pando.Rollout{HealthySeconds: 1}}
		if _, err := l.Deploy(t.Context(), spec, anna); err != nil {
			t.Fatal(err)
		}
		l.pass(t, time.Minute)
		stayed := 0
		for _, i := range l.instances() {
			if former[i.ID] {
				stayed++
			}
		}
		st := l.rollout(t)
		if got := l.revisions(); stayed != 3 || got[2] != 3 || got[3] != 1 || st.From != 3 || st.Rolling {
			t.Errorf("%d of 3 instances stayed, the revisions are %v, the rollout is %+v", stayed, got, st)
		}
		l.roll(t, "four")
		l.pass(t, 2*time.Minute)
		if got := l.revisions(); got[2] != 0 || got[3] != 0 || got[4] != 3 {
			t.Errorf("after a change of the program the revisions are %v", got)
		}
	})
}
