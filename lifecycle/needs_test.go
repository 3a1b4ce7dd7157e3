package lifecycle

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pando.run/pando"
)

func TestAServiceWaitsForWhatItNeeds(t *testing.T) {
	known := func(n Needed) Needed {
		n.Name, n.Known, n.State = "db", true, "deploying: 0 of 1 instances in rotation"
		return n
	}
	for _, c := range []struct {
		needed Needed
		want   string // "": it may start
	}{
		{Needed{Name: "db", Condition: pando.NeedStarted}, "there is no such service: deploy it"},
		{known(Needed{Condition: pando.NeedStarted}), "to be started, which is deploying: 0 of 1"},
		{known(Needed{Condition: pando.NeedStarted, Runs: true}), ""},
		{known(Needed{Condition: pando.NeedStarted, Serves: true}), ""},
		{known(Needed{Condition: pando.NeedStarted, Completed: true}), ""},
		{known(Needed{Condition: pando.NeedHealthy, Runs: true}), "to be healthy, which is deploying"},
		{known(Needed{Condition: pando.NeedHealthy, Serves: true}), ""},
		{known(Needed{Condition: pando.NeedCompleted, Serves: true}), "to be completed, which is"},
		{known(Needed{Condition: pando.NeedCompleted, Completed: true}), ""},
		{known(Needed{Condition: pando.NeedCompleted, Ended: "it exited with 3"}),
			"to be completed, and it exited with 3: mend db and deploy it again"},
	} {
		got := Unmet([]Needed{c.needed})
		if got == "" != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%+v: %q, want %q", c.needed, got, c.want)
		}
	}
	two := []Needed{known(Needed{Condition: pando.NeedHealthy}),
		{Name: "cache", Condition: pando.NeedStarted}}
	if got := Unmet(two); !strings.HasSuffix(got, "; then for cache to be started") {
		t.Errorf("two unmet needs: %q", got)
	}
	if got := Unmet(nil); got != "" {
		t.Errorf("without a need: %q", got)
	}
}

func TestLooksGetRarer(t *testing.T) {
	for waited, want := range map[time.Duration]time.Duration{
		-time.Second: 200 * time.Millisecond, 0: 200 * time.Millisecond,
		10 * time.Second: time.Second, time.Hour: 10 * time.Second,
	} {
		if got := NeedsLook(waited); got != want {
			t.Errorf("after %s: %s, want %s", waited, got, want)
		}
	}
}

// A cycle is found if and only if a walk along the needs comes back, and it is a walk along them.
func TestCycleFindsWalksThatComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 8).Draw(t, "services")
		edges := map[pando.ServiceName][]pando.ServiceName{}
		name := func(n int) pando.ServiceName { return pando.ServiceName(fmt.Sprintf("s%d", n)) }
		for range rapid.IntRange(0, 16).Draw(t, "needs") {
			from := name(rapid.IntRange(0, size-1).Draw(t, "from"))
			edges[from] = append(edges[from], name(rapid.IntRange(0, size-1).Draw(t, "to")))
		}
		reached := map[pando.ServiceName]bool{}
		for next := edges["s0"]; len(next) > 0; {
			var more []pando.ServiceName
			for _, n := range next {
				if !reached[n] {
					reached[n] = true
					more = append(more, edges[n]...)
				}
			}
			next = more
		}
		cycle := Cycle("s0", func(n pando.ServiceName) []pando.ServiceName { return edges[n] })
		if (cycle != nil) != reached["s0"] {
			t.Fatalf("needs %v: cycle %v", edges, cycle)
		}
		for n := 1; n < len(cycle); n++ {
			if !slices.Contains(edges[cycle[n-1]], cycle[n]) {
				t.Fatalf("needs %v: %v goes where no need is", edges, cycle)
			}
		}
		if cycle != nil && (cycle[0] != "s0" || cycle[len(cycle)-1] != "s0") {
			t.Fatalf("%v does not begin and end with s0", cycle)
		}
	})
}

func TestCycleIsSaidInWords(t *testing.T) {
	if got := CycleText([]pando.ServiceName{"a", "b", "a"}); got != "a needs b needs a" {
		t.Error(got)
	}
}

func TestCleanEndsCountSinceTheLastDeploy(t *testing.T) {
	ended := func(code float64) pando.Decision {
		return pando.Decision{Kind: pando.DecidedFailed, Reason: fmt.Sprintf("it exited with %g", code),
			Inputs: map[string]float64{ExitCode: code}}
	}
	deploy := pando.Decision{Kind: pando.DecidedDeploy}
	for _, c := range []struct {
		decisions []pando.Decision
		policy    pando.RestartPolicy
		clean     int
		last      string
	}{
		{[]pando.Decision{deploy, ended(0)}, pando.RestartNo, 1, ""},
		{[]pando.Decision{deploy, ended(0)}, pando.RestartOnFailure, 1, ""},
		{[]pando.Decision{deploy, ended(0)}, pando.RestartAlways, 0, ""},
		{[]pando.Decision{deploy, ended(3)}, pando.RestartNo, 0, "it exited with 3"},
		{[]pando.Decision{deploy, ended(3)}, pando.RestartOnFailure, 0, ""}, // another one follows
		{[]pando.Decision{deploy, ended(3), ended(0)}, pando.RestartNo, 1, ""},
		{[]pando.Decision{deploy, ended(0), deploy}, pando.RestartNo, 0, ""},
	} {
		if clean, last := CleanEnds(c.decisions, c.policy); clean != c.clean || last != c.last {
			t.Errorf("%v of %s: %d and %q, want %d and %q",
				c.decisions, c.policy, clean, last, c.clean, c.last)
		}
	}
}

func TestJudgeOfNeedsAndEnds(t *testing.T) {
	for _, c := range []struct {
		name string
		is   Case
		want Judgement
	}{
		{"waits before it first serves", Case{Least: 1, Target: 1, Needs: "it waits for db"},
			Judgement{Phase: pando.ServiceDeploying,
				Reason: "0 of 1 instances in rotation: it waits for db"}},
		{"waits before it takes over", Case{Serving: 1, Least: 1, Current: 1, Target: 2, Left: 1,
			Needs: "it waits for db"},
			Judgement{Phase: pando.ServiceRolling,
				Reason: "revision 2 takes over from 1: it waits for db"}},
		{"ended before it was ready", Case{Least: 1, Target: 1, Done: true},
			Judgement{Phase: pando.ServiceCompleted, First: true,
				Reason: "its instances ended with exit code 0"}},
		{"ended after it was ready", Case{Least: 1, Current: 1, Target: 1, Done: true},
			Judgement{Phase: pando.ServiceCompleted, Reason: "its instances ended with exit code 0"}},
		{"ended, and one runs", Case{Least: 1, Serving: 1, Left: 1, Current: 1, Target: 1, Done: true},
			Judgement{Phase: pando.ServiceServing, Reason: "1 in rotation"}},
		{"leaves later", Case{Removing: true, Left: 1, After: []pando.ServiceName{"web"}},
			Judgement{Phase: pando.ServiceRemoving,
				Reason: "1 instances are left; it waits until web is gone, which needs it"}},
	} {
		if got := Judge(c.is); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}
