package lifecycle

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pando.run/pando"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func TestPlaceStaysAtHomeElseGoesWhereThereIsMostRoom(t *testing.T) {
	hosts := []pando.Host{{Name: "a", Memory: 100, PIDs: 10}, {Name: "b", Memory: 100, PIDs: 10},
		{Name: "c", Memory: 400, PIDs: 10}}
	spec := pando.Spec{Name: "web",
		Resources: pando.Resources{MemoryBytes: 60, PIDs: 2}}.WithDefaults()
	on := func(names ...pando.HostName) map[pando.HostName]Load {
		var all []pando.Instance
		for _, h := range names {
			all = append(all, pando.Instance{Host: h, Service: spec.Key()})
		}
		return Loads(all, func(pando.Instance) pando.Resources { return spec.Resources })
	}
	for _, c := range []struct {
		name  string
		loads map[pando.HostName]Load
		home  pando.HostName
		want  pando.HostName
	}{
		{"nothing runs: where it takes the least share", on(), "", "c"},
		{"the home, however loaded", on("c", "c"), "c", "c"},
		{"the least loaded by its share of memory", on("a", "b", "c"), "", "c"},
		{"a home that is gone", on("c", "c", "c", "c", "c"), "z", "a"},
		{"processes count", map[pando.HostName]Load{"a": {PIDs: 9}, "b": {PIDs: 9}}, "", "c"},
		{"the fewest instances when nothing is limited",
			map[pando.HostName]Load{"a": {Instances: 2}, "b": {Instances: 1}, "c": {MemoryBytes: 300}}, "",
			"b"},
	} {
		h, why, err := Place(hosts, Wish{Spec: spec, Home: c.home, Loads: c.loads})
		if err != nil || h.Name != c.want || why == "" {
			t.Errorf("%s: got %s (%s), %v; want %s", c.name, h.Name, why, err, c.want)
		}
	}
	for name, full := range map[pando.HostName]map[pando.HostName]Load{
		"a": on("a"), "c": {"c": {PIDs: 9}},
		"": {"a": {PIDs: 9}, "b": {MemoryBytes: 50}, "c": {Instances: InstancesPerHostMax}},
	} {
		h, _, err := Place(hosts, Wish{Spec: spec, Home: name, Loads: full})
		if !errors.Is(err, pando.ErrNoRoom) {
			t.Errorf("home %q: got %s, %v; want ErrNoRoom", name, h.Name, err)
		}
	}
	if _, _, err := Place(nil, Wish{Spec: spec}); !errors.Is(err, pando.ErrNoRoom) {
		t.Errorf("got %v, want ErrNoRoom", err)
	}
}

func TestPlaceGoesWhereThereIsMostProcessorTimeAndRefusesNothingForIt(t *testing.T) {
	hosts := []pando.Host{{Name: "a", CPUs: 2}, {Name: "b", CPUs: 16}}
	spec := pando.Spec{Name: "web", Resources: pando.Resources{CPUs: 4}}.WithDefaults()
	loads := map[pando.HostName]Load{}
	var went []pando.HostName
	for range 10 {
		h, _, err := Place(hosts, Wish{Spec: spec, Loads: loads})
		if err != nil {
			t.Fatalf("after %v: %v; limits of processor time may add up to more than there is", went, err)
		}
		went = append(went, h.Name)
		loads[h.Name] = loads[h.Name].Plus(one(spec.Resources))
	}
	small := 0
	for _, h := range went {
		if h == "a" {
			small++
		}
	}
	if went[0] != "b" || small != 1 { // 2 : 16 processors, 10 instances
		t.Errorf("ten instances of 4 cores went to %v", went)
	}
}

func failures(revision, n int, at time.Time) (out []Failure) {
	for range n {
		out = append(out, Failure{At: at, Created: 7, Revision: revision})
	}
	return out
}

func TestBackOffDoublesToItsCapAndHoldsUntilASuccess(t *testing.T) {
	for _, wanted := range []int{1, 20} {
		var last time.Duration
		for n := range 15 * wanted {
			all := failures(1, n+1, t0)
			w := BackOff(all, 1, wanted, 0, t0, t0)
			if w.Failures != n+1 || w.For < last || w.For > BackOffCap || n < wanted && !w.Until.IsZero() ||
				n >= wanted && !w.Until.Equal(t0.Add(w.For)) {
				t.Fatalf("%d failures of %d instances: %+v after %s", n+1, wanted, w, last)
			}
			last = w.For
			if w := BackOff(all, 2, wanted, 0, t0, t0); w.Failures != 0 {
				t.Fatalf("failures of another revision count: %+v", w)
			}
			if late := BackOff(all, 1, wanted, 0, t0.Add(time.Hour), t0.Add(time.Hour)); late.For != w.For {
				t.Fatalf("after an hour the wait is %s, and was %s: there was no success", late.For, w.For)
			}
			if w := BackOff(all, 1, wanted, 7, t0, t0); w.Failures != 0 || !w.Until.IsZero() {
				t.Fatalf("failures before a success count: %+v", w)
			}
		}
		if last != BackOffCap {
			t.Errorf("%d failures of %d wait %s, want the cap", 15*wanted, wanted, last)
		}
		all := failures(1, 15*wanted, t0)
		all[len(all)-1].Served = Healed
		if w := BackOff(all, 1, wanted, 0, t0, t0); w.Failures != 1 || !w.Until.IsZero() || w.Failing {
			t.Errorf("after the end of an instance that had served: %+v", w)
		}
	}
}

// F7: one of 20 instances is killed every 3 seconds, then every second. Each start takes a moment.
// The service stays filled up.
func TestReplacementDoesNotStarve(t *testing.T) {
	for every, least := range map[time.Duration]int{
		3 * time.Second: 19, time.Second: 18, 100 * time.Millisecond: 0,
	} {
		const wanted = 20
		dice := rand.New(rand.NewPCG(1, 2))
		commit := pando.StoreRevision(1)
		run := make([]pando.StoreRevision, wanted) // the commits of the instances
		born := map[pando.StoreRevision]time.Time{}
		for n := range run {
			run[n], born[run[n]] = commit, t0
		}
		worst := wanted
		var all []Failure
		var healed pando.StoreRevision
		started, killed, held := t0, t0, time.Duration(0)
		for now := t0; now.Sub(t0) < 5*time.Minute; now = now.Add(50 * time.Millisecond) {
			for _, c := range run {
				if now.Sub(born[c]) >= Healed {
					healed = max(healed, c)
				}
			}
			commit++
			if now.Sub(killed) >= every && len(run) > 0 {
				n := dice.IntN(len(run))
				served := now.Sub(born[run[n]])
				all = append(all, Failure{At: now, Created: commit, Revision: 1, Served: served})
				killed, run = now, slices.Delete(run, n, n+1)
			} else if len(run) < wanted && BackOff(all, 1, wanted, healed, started, now).Until.IsZero() {
				held = max(held, now.Sub(started))
				for born[commit] = now; len(run) < wanted; {
					run = append(run, commit)
				}
				started = now
			}
			worst = min(worst, len(run))
		}
		if held > BackOffCap+time.Second {
			t.Errorf("one killed every %s: nothing is started for %s", every, held)
		}
		if worst < least {
			t.Errorf("one killed every %s: down to %d of %d, want at least %d", every, worst, wanted, least)
		}
	}
}

func TestMayEndLeavesThreeQuartersAndTheLast(t *testing.T) {
	for _, c := range []struct {
		unhealthy, inRotation, total int
		want                         bool
	}{
		{0, 1, 1, false}, {0, 1, 20, false}, {0, 2, 2, true}, {1, 2, 3, false}, {0, 4, 4, true},
		{1, 3, 4, false},
		{1, 7, 8, true}, {2, 6, 8, false}, {24, 76, 100, true}, {25, 75, 100, false},
	} {
		if got := MayEnd(c.unhealthy, c.inRotation, c.total); got != c.want {
			t.Errorf("%d unhealthy, %d in rotation of %d: %t", c.unhealthy, c.inRotation, c.total, got)
		}
	}
}

func TestADecisionOnWhichTheNextRestsIsRemembered(t *testing.T) {
	decided := func(id string, k pando.DecisionKind, code float64) pando.Decision {
		return pando.Decision{ID: id, Kind: k, Inputs: map[string]float64{ExitCode: code}}
	}
	all := []pando.Decision{
		decided("1", pando.DecidedFailed, 0), decided("2", pando.DecidedDeploy, 0),
		decided("3", pando.DecidedFailed, 0),
		decided("4", pando.DecidedFailed, 1), decided("5", pando.DecidedFailed, 0),
		decided("6", pando.DecidedPin, 0),
	}
	for policy, want := range map[pando.RestartPolicy]string{
		pando.RestartAlways: "2", pando.RestartOnFailure: "2 3 5", pando.RestartNo: "2 4 5",
	} {
		kept := slices.Sorted(maps.Keys(Remembered(all, policy, 2)))
		if got := strings.Join(kept, " "); got != want {
			t.Errorf("%s: %s are remembered, want %s", policy, got, want)
		}
	}
}

// For any start times, a rollout ends with wanted new and no old instances. It never has fewer than
// wanted in rotation and never more than wanted + surge in all.
func TestRolloutKeepsCapacity(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		wanted := rapid.IntRange(1, 5).Draw(t, "wanted")
		r := pando.Rollout{Surge: rapid.IntRange(1, 3).Draw(t, "surge"), HealthySeconds: 1}
		now := t0
		var in []pando.Instance
		for n := range wanted {
			in = append(in, pando.Instance{ID: pando.InstanceID(fmt.Sprintf("old-%d", n)), Revision: 1,
				Phase: pando.PhaseInRotation})
		}
		for n := range 400 {
			m := next(Takeover{Current: 1, Target: 2, Wanted: wanted, Rule: r, Instances: in}, now)
			switch {
			case m.Finish:
				return
			case m.Abort:
				t.Fatalf("aborted: %s", m.Reason)
			case m.Start:
				in = append(in, pando.Instance{ID: pando.InstanceID(fmt.Sprintf("new-%d", n)), Revision: 2,
					Phase: pando.PhasePlaced, Since: now})
			case m.Drain != "":
				for k := range in {
					if in[k].ID == m.Drain {
						in[k].Phase = pando.PhaseDraining
					}
				}
			default:
				now = now.Add(time.Duration(rapid.IntRange(1, 700).Draw(t, "ms")) * time.Millisecond)
				for k := range in {
					if in[k].Phase == pando.PhasePlaced && rapid.Bool().Draw(t, "ready") {
						in[k].Phase, in[k].Since = pando.PhaseInRotation, now
					}
				}
			}
			rotating, all := 0, 0
			for _, i := range in {
				if i.Phase.TakesFlows() {
					rotating++
				}
				if i.Capacity() {
					all++
				}
			}
			if rotating < wanted || all > wanted+r.Surge {
				t.Fatalf("%d in rotation, %d in all; wanted %d, surge %d", rotating, all, wanted, r.Surge)
			}
		}
		t.Fatalf("the rollout does not end")
	})
}

// For any start times, a stop-first rollout ends with the wanted number. It never has more than
// that running, including those that drain. While all are healthy, at most one is missing.
func TestStopFirstNeverRunsMoreThanWanted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		wanted := rapid.IntRange(1, 5).Draw(t, "wanted")
		rule := pando.Rollout{Order: pando.StopFirst, Surge: 3, HealthySeconds: 1}
		now := t0
		var in []pando.Instance
		for n := range wanted {
			in = append(in, pando.Instance{ID: pando.InstanceID(fmt.Sprintf("old-%d", n)), Revision: 1,
				Phase: pando.PhaseInRotation})
		}
		for n := range 2000 {
			m := next(Takeover{Current: 1, Target: 2, Wanted: wanted, Rule: rule, Instances: in}, now)
			switch {
			case m.Finish:
				return
			case m.Abort:
				t.Fatalf("aborted: %s", m.Reason)
			case m.Start:
				in = append(in, pando.Instance{ID: pando.InstanceID(fmt.Sprintf("new-%d", n)), Revision: 2,
					Phase: pando.PhasePlaced, Since: now})
			case m.Drain != "":
				for k := range in {
					if in[k].ID == m.Drain {
						in[k].Phase = pando.PhaseDraining
					}
				}
			default:
				now = now.Add(time.Duration(rapid.IntRange(1, 700).Draw(t, "ms")) * time.Millisecond)
				for k := range in {
					if in[k].Phase == pando.PhasePlaced && rapid.Bool().Draw(t, "ready") {
						in[k].Phase, in[k].Since = pando.PhaseInRotation, now
					}
				}
				gone := rapid.Bool().Draw(t, "gone")
				in = slices.DeleteFunc(in,
					func(i pando.Instance) bool { return gone && i.Phase == pando.PhaseDraining })
			}
			if len(in) > wanted {
				t.Fatalf("%d run, wanted %d", len(in), wanted)
			}
			if out := wanted - len(in); out > 1 {
				t.Fatalf("%d of %d are missing", out, wanted)
			}
		}
		t.Fatalf("the rollout does not end")
	})
}

func TestThreeFailuresOfTheNewRevisionAbortARollout(t *testing.T) {
	in := []pando.Instance{{Revision: 1, Phase: pando.PhaseInRotation}}
	for _, c := range []struct {
		name   string
		wanted int
		policy pando.RestartPolicy
		all    []Failure
		abort  bool
	}{
		{"two", 1, pando.RestartAlways, failures(2, 2, t0), false},
		{"three", 1, pando.RestartAlways, failures(2, 3, t0), true},
		{"three of the old one", 1, pando.RestartAlways, failures(1, 3, t0), false},
		{"three of an unknown revision", 1, pando.RestartAlways, failures(0, 3, t0), false},
		{"three of a hundred", 100, pando.RestartAlways, failures(2, 3, t0), false},
		{"a tenth", 100, pando.RestartAlways, failures(2, 10, t0), true},
		{"one that is not replaced", 1, pando.RestartNo, failures(2, 1, t0), true},
	} {
		m := next(Takeover{Current: 1, Target: 2, Wanted: c.wanted, Rule: pando.Rollout{Surge: 1},
			Restart: c.policy, Failures: c.all, Instances: in}, t0)
		if m.Abort != c.abort {
			t.Errorf("%s: got %+v, want an abort: %t", c.name, m, c.abort)
		}
	}
}

// A job that finished its work is neither a failure nor started again.
func TestARolloutOfAJobEndsWithIt(t *testing.T) {
	for _, policy := range []pando.RestartPolicy{pando.RestartNo, pando.RestartOnFailure} {
		done := []Failure{{Revision: 2, Clean: true, At: t0}}
		m := next(Takeover{Current: 1, Target: 2, Wanted: 1, Rule: pando.Rollout{Surge: 1},
			Restart: policy, Failures: done}, t0)
		if !m.Finish {
			t.Errorf("restart %s: got %+v, want the end of the rollout", policy, m)
		}
	}
}
