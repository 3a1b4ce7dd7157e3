package lifecycle

import (
	"fmt"
	"slices"
	"time"

	"pando.run/pando"
)

// Strikes is the number of failures of a new revision after which the rollout goes back. In a large
// service some instances always fail, so a tenth of the wanted number counts if that is more.
const Strikes = 3

// Takeover is the current stage of a rollout.
type Takeover struct {
	Current, Target int
	Wanted          int // instances there are to be in the end
	Rule            pando.Rollout
	Restart         pando.RestartPolicy
	Failures        []Failure
	Instances       []pando.Instance // of the service, in every phase
}

// Move is the next step of a rollout.
type Move struct {
	Start  bool            // start one instance of the target revision
	Drain  *pando.Instance // take this one out of rotation
	Finish bool            // the target is current now
	Abort  bool            // go back to the current revision
	Wait   time.Time       // nothing to do before this; zero means after the next change
	Reason string
}

// Rollout returns the next step by which the target revision takes over from the current one
// (container DevOps §rolling upgrade). Failures of the target, before or after it was ready, abort
// the rollout when they reach the strikes (DESIGN: a failed gate rolls everything back by itself).
//
// start-first: start a new instance beside the old ones within the surge. Wait until it is healthy
// for HealthySeconds, drain one old instance, and repeat.
//
// stop-first: drain one old instance and wait until its record is gone. Start a new one in its
// place, wait until it is healthy, and repeat. Never more than the wanted number run.
func Rollout(t Takeover, now time.Time) Move {
	failed, done := t.ends()
	if n := len(failed); n >= t.strikes() {
		return Move{Abort: true, Reason: fmt.Sprintf("%d of revision %d failed, the last because %s",
			n, t.Target, failed[n-1].Reason)}
	}
	t.Wanted = max(0, t.Wanted-done)
	var fresh, old []pando.Instance
	leaving := 0
	for _, i := range t.Instances {
		switch {
		case i.Warm:
		case !i.Capacity():
			leaving++
		case i.Revision == t.Target:
			fresh = append(fresh, i)
		default:
			old = append(old, i)
		}
	}
	healthy, next := healthySince(fresh, pando.Seconds(t.Rule.HealthySeconds), now)
	if len(old) == 0 && healthy >= t.Wanted {
		return Move{Finish: true, Reason: fmt.Sprintf("%d instances of revision %d are in rotation, none of revision %d is left",
			len(fresh), t.Target, t.Current)}
	}
	if t.Rule.Order == pando.StopFirst {
		return t.stopFirst(fresh, old, leaving, healthy, next)
	}
	if len(fresh) < t.Wanted && len(fresh)+len(old) < t.Wanted+t.Rule.Surge {
		return Move{Start: true, Reason: fmt.Sprintf("%d of %d are revision %d, surge %d",
			len(fresh), t.Wanted, t.Target, t.Rule.Surge)}
	}
	if len(old) > 0 && healthy+len(old) > t.Wanted {
		leaves := oldest(old)
		return Move{Drain: &leaves, Reason: fmt.Sprintf("%d of revision %d have been in rotation for %gs",
			healthy, t.Target, t.Rule.HealthySeconds)}
	}
	return Move{Wait: next, Reason: "waiting for the new instances to be healthy"}
}

// ends returns the failures of the target and the number of its instances that finished their work.
func (t Takeover) ends() (failed []Failure, done int) {
	for _, f := range t.Failures {
		switch {
		case f.Revision != t.Target:
		case f.Clean && t.Restart != pando.RestartAlways:
			done++
		default:
			failed = append(failed, f)
		}
	}
	return failed, done
}

func (t Takeover) strikes() int {
	if t.Restart == pando.RestartNo {
		return 1 // nothing is started in its place
	}
	return max(Strikes, t.Wanted/10)
}

func (t Takeover) stopFirst(fresh, old []pando.Instance, leaving, healthy int, next time.Time) Move {
	switch {
	case leaving > 0:
		return Move{Wait: next, Reason: fmt.Sprintf("waiting for %d instances to end (stop-first)", leaving)}
	case len(fresh) < t.Wanted && len(fresh)+len(old) < t.Wanted:
		return Move{Start: true, Reason: fmt.Sprintf("%d of %d are revision %d, stop-first",
			len(fresh), t.Wanted, t.Target)}
	case len(old) > 0 && healthy == len(fresh):
		leaves := oldest(old)
		return Move{Drain: &leaves, Reason: fmt.Sprintf(
			"it ends before one of revision %d starts in its place (rollout.order stop-first)", t.Target)}
	}
	return Move{Wait: next, Reason: "waiting for the new instances to be healthy"}
}

// healthySince counts the instances in rotation for at least d. It also returns when the next one
// will be.
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

// oldest returns the instance that leaves first: one not yet in rotation, because its end breaks no
// flow, else the first born.
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
