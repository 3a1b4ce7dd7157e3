package lifecycle

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"pando.run/pando"
	"pando.run/pando/spec/span"
)

// Strikes is the number of failures of a new revision after which the rollout goes back. In a large
// service some instances always fail, so a tenth of the wanted number counts if that is more.
const Strikes = 3

// Takeover holds the facts of a rollout.
type Takeover struct {
	Current, Target int
	Wanted          int // instances there are to be in the end
	Rule            pando.Rollout
	Restart         pando.RestartPolicy
	Failures        []Failure
	Paused          bool             // by an operator
	Age             time.Duration    // of the rollout, without its pauses
	Soaked          bool             // its canaries passed
	Compared        *pando.Compared  // by the gate; nil: not yet
	Alike           map[int]bool     // revisions with instances that may stay
	Ordered         bool             // old ordinals leave in their order
	Instances       []pando.Instance // of the service, in every phase
}

// Move is the next step of a service, with its reason.
type Move struct {
	Start  bool             // start one instance of the target revision
	Former bool             // with Start: of the current revision instead
	Drain  pando.InstanceID // take this one out of rotation
	Finish bool             // the target is current now
	Abort  bool             // go back to the current revision
	Pass   bool             // the canaries have soaked: the rollout continues
	Wait   time.Time        // nothing to do before this; zero means after the next change
	Reason string
}

// Revision returns the revision of the instance that the move starts.
func (m Move) Revision(s pando.Service) int {
	if m.Former {
		return s.Current
	}
	return s.Target
}

// Stage is the current stage of a rollout. It counts the instances once. Started and Drained follow
// the moves that were carried out, so that a decision with many moves does not count them again.
type Stage struct {
	facts   Takeover
	failed  []Failure          // of the target
	wanted  int                // instances, less those that finished their work
	old     []pando.InstanceID // of other revisions, in the order in which they leave
	stale   int                // of old, those of overtaken revisions, which come first
	fresh   int                // of the target
	healthy int                // of fresh, in rotation for long enough
	leaving int
	next    time.Time // when the next fresh one is healthy
}

// Survey returns the stage of a rollout.
func Survey(t Takeover, now time.Time) *Stage {
	s := &Stage{facts: t}
	s.ends()
	wait := pando.Seconds(t.Rule.HealthySeconds)
	if t.canaries(s.wanted) > 0 {
		wait = max(wait, pando.Seconds(t.Rule.SoakSeconds))
	}
	var old []int
	for n := range t.Instances {
		i := &t.Instances[n]
		switch {
		case i.Warm:
		case !i.Capacity():
			s.leaving++
		case i.Revision != t.Target && !t.Alike[i.Revision]:
			old = append(old, n)
			s.stale += t.overtaken(n)
		default:
			s.fresh++
			s.addHealth(i, wait, now)
		}
	}
	slices.SortFunc(old, func(x, y int) int {
		if a, b := t.overtaken(x), t.overtaken(y); a != b {
			return cmp.Compare(b, a)
		}
		if t.Ordered {
			return cmp.Compare(t.Instances[x].Ordinal, t.Instances[y].Ordinal)
		}
		return leavesFirst(t.Instances, x, y)
	})
	for _, n := range old {
		s.old = append(s.old, t.Instances[n].ID)
	}
	return s
}

// Started records that the instance of the last move was placed.
func (s *Stage) Started(m Move) {
	if m.Former {
		s.old = append(s.old, "") // a paused rollout drains none
		return
	}
	s.fresh++
}

// Drained records that the instance of the last move drains.
func (s *Stage) Drained() {
	s.old = s.old[1:]
	s.stale = max(0, s.stale-1)
	s.leaving++
}

// Next returns the step by which the target revision takes over from the current one (container
// DevOps §rolling upgrade). Failures of the target, before or after it was ready, abort the rollout
// when they reach the strikes.
//
// start-first: start a new instance beside the old ones within the surge. Wait until it is healthy
// for HealthySeconds, drain one old instance, and repeat.
//
// stop-first: drain one old instance and wait until its record is gone. Start a new one in its
// place, wait until it is healthy, and repeat. Never more than the wanted number run.
func (s *Stage) Next() Move {
	t := &s.facts
	if n := CountFailures(s.failed); n >= t.strikes() {
		return Move{Abort: true, Reason: fmt.Sprintf("%d of revision %d failed, the last because %s",
			n, t.Target, s.failed[len(s.failed)-1].Reason)}
	}
	if reason := t.failedGate(); reason != "" {
		return Move{Abort: true, Reason: reason}
	}
	if t.Paused {
		return s.paused()
	}
	if n := t.canaries(s.wanted); n > 0 {
		return s.canary(n)
	}
	if len(s.old) == 0 && s.healthy >= s.wanted {
		reason := fmt.Sprintf("%d instances of revision %d are in rotation, and none of revision %d",
			s.fresh, t.Target, t.Current)
		if s.leaving > 0 {
			reason += fmt.Sprintf("; %d that leave still serve their connections", s.leaving)
		}
		if t.Alike[t.Current] {
			reason = fmt.Sprintf("instances of revision %d run as those of revision %d, and stay",
				t.Current, t.Target)
		}
		return Move{Finish: true, Reason: reason}
	}
	if t.Rule.Order == pando.StopFirst {
		return s.stopFirst()
	}
	if s.fresh < s.wanted && s.fresh+len(s.old) < s.wanted+t.Rule.Surge {
		return Move{Start: true, Reason: fmt.Sprintf("%d of %d are revision %d, surge %d",
			s.fresh, s.wanted, t.Target, t.Rule.Surge)}
	}
	if len(s.old) > 0 && s.healthy+len(s.old) > s.wanted {
		reason := fmt.Sprintf("%d of revision %d have been in rotation for %s",
			s.healthy, t.Target, span.Seconds(t.Rule.HealthySeconds))
		return Move{Drain: s.old[0], Reason: reason}
	}
	return s.waiting()
}

// paused replaces missing instances by those of the current revision. A paused rollout makes no
// other step. The failures of the target still abort it.
func (s *Stage) paused() Move {
	t := &s.facts
	ends := t.Rule.Order == pando.StopFirst && s.leaving > 0
	if missing := s.wanted - s.fresh - len(s.old); missing > 0 && !ends {
		return Move{Start: true, Former: true, Reason: fmt.Sprintf(
			"%d of %d run while the rollout is paused", s.fresh+len(s.old), s.wanted)}
	}
	return Move{Reason: "the rollout is paused"}
}

// Counts returns the number of instances of other revisions, of the target, and of the healthy ones
// among the latter.
func (s *Stage) Counts() (old, fresh, healthy int) { return len(s.old), s.fresh, s.healthy }

func (s *Stage) stopFirst() Move {
	t := &s.facts
	switch {
	case s.leaving > 0:
		return Move{Wait: s.next,
			Reason: fmt.Sprintf("waiting for %d instances to end (stop-first)", s.leaving)}
	case s.fresh < s.wanted && s.fresh+len(s.old) < s.wanted:
		return Move{Start: true, Reason: fmt.Sprintf("%d of %d are revision %d, stop-first",
			s.fresh, s.wanted, t.Target)}
	case len(s.old) > 0 && s.healthy == s.fresh:
		return Move{Drain: s.old[0], Reason: fmt.Sprintf(
			"it ends before one of revision %d starts in its place (rollout.order stop-first)", t.Target)}
	}
	return s.waiting()
}

func (s *Stage) waiting() Move {
	return Move{Wait: s.next, Reason: "waiting for the new instances to be healthy"}
}

// ends sorts the failures of the target into failed instances and those that finished their work.
func (s *Stage) ends() {
	done := 0
	for _, f := range s.facts.Failures {
		switch {
		case f.Revision != s.facts.Target:
		case f.Clean && s.facts.Restart != pando.RestartAlways:
			done += f.times()
		default:
			s.failed = append(s.failed, f)
		}
	}
	s.wanted = max(0, s.facts.Wanted-done)
}

// addHealth counts a fresh instance that has been in rotation for long enough, and notes when the
// next one will be.
func (s *Stage) addHealth(i *pando.Instance, wait time.Duration, now time.Time) {
	if i.Phase != pando.PhaseInRotation {
		return
	}
	at := i.Since.Add(wait)
	if !now.Before(at) {
		s.healthy++
	} else if s.next.IsZero() || at.Before(s.next) {
		s.next = at
	}
}

// overtaken returns 1 for an instance of a revision that never served, because a newer deploy came
// before. It leaves before those of the current revision.
func (t Takeover) overtaken(n int) int {
	if t.Instances[n].Revision == t.Current {
		return 0
	}
	return 1
}

func (t Takeover) strikes() int {
	if t.Restart == pando.RestartNo {
		return 1 // nothing is started in its place
	}
	return max(Strikes, t.Wanted/10)
}

// StopFirst reports whether a service replaces its instances stop-first: the newest spec has that
// order, or the spec of an instance.
func StopFirst(newest pando.Spec, running ...pando.Spec) bool {
	first := func(s pando.Spec) bool { return s.Rollout.Order == pando.StopFirst }
	return first(newest) || slices.ContainsFunc(running, first)
}

// leavesFirst orders two instances as they leave. One not yet in rotation comes first, because its
// end breaks no flow. Then the first born comes first.
func leavesFirst(all []pando.Instance, x, y int) int {
	a, b := &all[x], &all[y]
	if takes := a.Phase.TakesFlows(); takes != b.Phase.TakesFlows() {
		if takes {
			return 1
		}
		return -1
	}
	return cmp.Or(a.Born.Compare(b.Born), cmp.Compare(x, y))
}
