package lifecycle

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pando.run/pando"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func TestPlaceStaysAtHomeElseGoesWhereThereIsMostRoom(t *testing.T) {
	hosts := []pando.Host{{Name: "a", Memory: 100, PIDs: 10}, {Name: "b", Memory: 100, PIDs: 10}, {Name: "c", Memory: 400, PIDs: 10}}
	spec := pando.Spec{Name: "web", Resources: pando.Resources{MemoryBytes: 60, PIDs: 2}}.WithDefaults()
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
		{"nothing runs", on(), "", "a"},
		{"the home, however loaded", on("c", "c"), "c", "c"},
		{"the least loaded by its share of memory", on("a", "b", "c"), "", "c"},
		{"a home that is gone", on("a"), "z", "b"},
		{"processes count, too", map[pando.HostName]Load{"a": {PIDs: 9}, "b": {PIDs: 9}}, "", "c"},
		{"the fewest instances when nothing is limited", map[pando.HostName]Load{"a": {Instances: 2}, "b": {Instances: 1}, "c": {Instances: 2}}, "", "b"},
	} {
		if h, why, err := Place(hosts, c.loads, spec, c.home); err != nil || h.Name != c.want || why == "" {
			t.Errorf("%s: got %s (%s), %v; want %s", c.name, h.Name, why, err, c.want)
		}
	}
	for name, full := range map[pando.HostName]map[pando.HostName]Load{
		"a": on("a"), "c": {"c": {PIDs: 9}}, "": {"a": {PIDs: 9}, "b": {MemoryBytes: 50}, "c": {Instances: InstancesPerHostMax}},
	} {
		if h, _, err := Place(hosts, full, spec, name); !errors.Is(err, pando.ErrNoRoom) {
			t.Errorf("home %q: got %s, %v; want ErrNoRoom", name, h.Name, err)
		}
	}
	if _, _, err := Place(nil, nil, spec, ""); !errors.Is(err, pando.ErrNoRoom) {
		t.Errorf("got %v, want ErrNoRoom", err)
	}
}

func TestBackOffDoublesToItsCapAndForgets(t *testing.T) {
	var decisions []pando.Decision
	var last time.Duration
	for n := range 12 {
		decisions = append(decisions, pando.Decision{Kind: pando.DecidedFailed, At: t0})
		at, failures := BackOff(decisions, t0)
		wait := time.Duration(0)
		if !at.IsZero() {
			wait = at.Sub(t0)
		}
		if failures != n+1 || wait < last || wait > BackOffCap || n == 0 && wait != 0 {
			t.Fatalf("%d failures: wait %s after %s", failures, wait, last)
		}
		last = wait
	}
	if last != BackOffCap {
		t.Errorf("12 failures wait %s, want the cap", last)
	}
	if at, _ := BackOff(decisions, t0.Add(2*BackOffMemory)); !at.IsZero() {
		t.Errorf("old failures are not forgotten")
	}
	decisions = append(decisions, pando.Decision{Kind: pando.DecidedDeploy, At: t0})
	if at, _ := BackOff(decisions, t0); !at.IsZero() {
		t.Errorf("a new spec is not a new chance")
	}
}

// However long each instance takes, a rollout ends with wanted new and no old instances, never has fewer than wanted in
// rotation and never more than wanted + surge in all.
func TestRolloutKeepsCapacity(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		wanted := rapid.IntRange(1, 5).Draw(t, "wanted")
		r := pando.Rollout{Surge: rapid.IntRange(1, 3).Draw(t, "surge"), HealthySeconds: 1}
		now := t0
		var in []pando.Instance
		for n := range wanted {
			in = append(in, pando.Instance{ID: pando.InstanceID(fmt.Sprintf("old-%d", n)), Revision: 1, Phase: pando.PhaseInRotation})
		}
		for n := range 400 {
			m := Rollout(1, 2, wanted, r, in, now)
			switch {
			case m.Finish:
				return
			case m.Abort:
				t.Fatalf("aborted: %s", m.Reason)
			case m.Start:
				in = append(in, pando.Instance{ID: pando.InstanceID(fmt.Sprintf("new-%d", n)), Revision: 2, Phase: pando.PhasePlaced, Since: now})
			case m.Drain != nil:
				for k := range in {
					if in[k].ID == m.Drain.ID {
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

func TestRolloutAbortsOnAFailure(t *testing.T) {
	in := []pando.Instance{{Revision: 1, Phase: pando.PhaseInRotation}, {ID: "web-x", Revision: 2, Phase: pando.PhaseFailed, Reason: "it exited with 1"}}
	if m := Rollout(1, 2, 1, pando.Rollout{Surge: 1}, in, t0); !m.Abort {
		t.Errorf("got %+v, want an abort", m)
	}
}
