package lifecycle

import (
	"fmt"
	"slices"
	"time"

	"pando.run/pando"
)

// Move is the next step of a rollout.
type Move struct {
	Start  bool            // start one instance of the target revision
	Drain  *pando.Instance // take this one out of rotation
	Finish bool            // the target is current now
	Abort  bool            // go back to the current revision
	Wait   time.Time       // nothing to do before this; zero: wait for a change
	Reason string
}

// Rollout says how revision `target` takes over from `current`: start beside the old within the surge, let the new one be
// healthy for a while, drain one old, and so on. A new instance that fails aborts it all (container DevOps §rolling upgrade;
// DESIGN: a failed gate rolls everything back by itself). wanted is how many instances there are to be.
func Rollout(current, target, wanted int, r pando.Rollout, instances []pando.Instance, now time.Time) Move {
	var fresh, old []pando.Instance
	for _, i := range instances {
		switch {
		case i.Revision == target && i.Phase == pando.PhaseFailed:
			return Move{Abort: true, Reason: fmt.Sprintf("%s of revision %d failed: %s", i.ID, target, i.Reason)}
		case !i.Capacity():
		case i.Revision == target:
			fresh = append(fresh, i)
		default:
			old = append(old, i)
		}
	}
	healthy, next := healthySince(fresh, pando.Seconds(r.HealthySeconds), now)
	if len(old) == 0 && healthy >= wanted {
		return Move{Finish: true, Reason: fmt.Sprintf("%d instances of revision %d are in rotation, none of revision %d is left", len(fresh), target, current)}
	}
	if len(fresh) < wanted && len(fresh)+len(old) < wanted+r.Surge {
		return Move{Start: true, Reason: fmt.Sprintf("%d of %d are revision %d, surge %d", len(fresh), wanted, target, r.Surge)}
	}
	if len(old) > 0 && healthy+len(old) > wanted {
		leaves := oldest(old)
		return Move{Drain: &leaves, Reason: fmt.Sprintf("%d of revision %d have been in rotation for %gs", healthy, target, r.HealthySeconds)}
	}
	return Move{Wait: next, Reason: "waiting for the new instances to be healthy"}
}

// healthySince counts the instances in rotation for at least d, and says when the next one will be.
func healthySince(instances []pando.Instance, d time.Duration, now time.Time) (n int, next time.Time) {
	for _, i := range instances {
		if i.Phase != pando.PhaseInRotation {
			continue
		}
		at := i.Since.Add(d)
		if !now.Before(at) {
			n++
		} else if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return n, next
}

// oldest prefers an instance that is not yet in rotation: it has nothing to lose.
func oldest(instances []pando.Instance) pando.Instance {
	return slices.MinFunc(instances, func(a, b pando.Instance) int {
		if a.Phase.TakesFlows() != b.Phase.TakesFlows() {
			if b.Phase.TakesFlows() {
				return -1
			}
			return 1
		}
		return a.Born.Compare(b.Born)
	})
}
