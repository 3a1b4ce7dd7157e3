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

func TestPlacePrefersTheAskersHostThenTheEmptiest(t *testing.T) {
	hosts := []pando.Host{{Name: "a", Memory: 100}, {Name: "b", Memory: 100}, {Name: "c", Memory: 100}}
	spec := pando.Spec{Name: "web", Resources: pando.Resources{MemoryBytes: 60}}.WithDefaults()
	on := func(h pando.HostName) pando.Instance { return pando.Instance{Host: h, Service: spec.Key()} }
	if h, _, err := Place(hosts, nil, spec, "b"); err != nil || h.Name != "b" {
		t.Errorf("got %s, %v; want the asker's host b", h.Name, err)
	}
	if h, _, err := Place(hosts, []pando.Instance{on("b"), on("a")}, spec, "b"); err != nil || h.Name != "c" {
		t.Errorf("got %s, %v; want c, the only one with room", h.Name, err)
	}
	if _, _, err := Place(hosts, []pando.Instance{on("a"), on("b"), on("c")}, spec, "b"); !errors.Is(err, pando.ErrNoRoom) {
		t.Errorf("got %v, want ErrNoRoom", err)
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
