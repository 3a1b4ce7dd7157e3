package lifecycle

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pando.run/pando"
)

var orders = []pando.RolloutOrder{pando.StartFirst, pando.StopFirst}

// next returns the next step of a rollout.
func next(t Takeover, now time.Time) Move { return Survey(t, now).Next() }

// takeover draws a rollout at any stage.
func takeover(t *rapid.T) Takeover {
	u := Takeover{
		Current: 1, Target: 2, Wanted: rapid.IntRange(0, 8).Draw(t, "wanted"),
		Paused: rapid.IntRange(0, 3).Draw(t, "paused") == 0,
		Rule: pando.Rollout{
			Surge: rapid.IntRange(1, 4).Draw(t, "surge"), HealthySeconds: 1,
			Order: rapid.SampledFrom(orders).Draw(t, "order"),
		},
	}
	for n := range rapid.IntRange(0, 12).Draw(t, "instances") {
		u.Instances = append(u.Instances, pando.Instance{
			ID:       pando.InstanceID(fmt.Sprint("web-", n)),
			Revision: rapid.IntRange(1, 2).Draw(t, "revision"),
			Phase:    rapid.SampledFrom(phases).Draw(t, "phase"),
			Warm:     rapid.IntRange(0, 5).Draw(t, "warm") == 0,
			Born:     t0.Add(time.Duration(rapid.IntRange(0, 3).Draw(t, "born")) * time.Second),
			Since:    t0.Add(-time.Duration(rapid.IntRange(0, 2000).Draw(t, "ms")) * time.Millisecond),
		})
	}
	return u
}

// carryOut changes the instances as control does for a move. It returns false at the end of a look.
func (u *Takeover) carryOut(m Move, n int) bool {
	switch {
	case m.Start:
		revision := u.Target
		if m.Former {
			revision = u.Current
		}
		u.Instances = append(u.Instances, pando.Instance{
			ID: pando.InstanceID(fmt.Sprint("new-", n)), Revision: revision, Phase: pando.PhasePlaced,
			Born: t0, Since: t0,
		})
	case m.Drain != "":
		at := slices.IndexFunc(u.Instances, func(i pando.Instance) bool { return i.ID == m.Drain })
		u.Instances[at] = u.Instances[at].Become(pando.PhaseDraining, t0, m.Reason)
	default:
		return false
	}
	return true
}

// A stage that follows its moves is the stage that a new survey finds.
func TestAStageFollowsItsMoves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		u := takeover(t)
		s := Survey(u, t0)
		for n := range 50 {
			m := s.Next()
			if again := next(u, t0); m != again {
				t.Fatalf("after %d moves the stage wants %+v, a new survey %+v", n, m, again)
			}
			if !u.carryOut(m, n) {
				return
			}
			if m.Start {
				s.Started(m)
			} else {
				s.Drained()
			}
		}
		t.Fatal("one look makes 50 moves")
	})
}

// A paused rollout moves no flow to the new revision and takes none from the old one. It holds the
// wanted number with instances of the old one.
func TestAPausedRolloutKeepsBothRevisionsAsTheyAre(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		u := takeover(t)
		u.Paused = true
		for n := range 50 {
			m := next(u, t0)
			if m.Drain != "" || m.Finish || m.Start && !m.Former {
				t.Fatalf("a paused rollout makes the move %+v", m)
			}
			if !u.carryOut(m, n) {
				break
			}
		}
		old, fresh, _ := Survey(u, t0).Counts()
		ends := u.Rule.Order == pando.StopFirst && Survey(u, t0).leaving > 0
		if old+fresh < u.Wanted && !ends {
			t.Fatalf("%d of %d run", old+fresh, u.Wanted)
		}
	})
}

// However many moves one look makes, the service keeps to its surge and stays in rotation.
func TestOneLookOfARolloutKeepsSurgeAndCapacity(t *testing.T) {
	count := func(all []pando.Instance) (capacity, serving, running int) {
		for _, i := range all {
			if i.Capacity() {
				capacity++
			}
			if i.Phase == pando.PhaseInRotation && !i.Warm {
				serving++
			}
			if !i.Warm {
				running++
			}
		}
		return capacity, serving, running
	}
	rapid.Check(t, func(t *rapid.T) {
		u := takeover(t)
		capacity, serving, running := count(u.Instances)
		for n := 0; n < 50 && u.carryOut(next(u, t0), n); n++ {
		}
		more, in, run := count(u.Instances)
		stopFirst := u.Rule.Order == pando.StopFirst
		switch {
		case !stopFirst && more > max(capacity, u.Wanted+u.Rule.Surge):
			t.Fatalf("%d, then %d of %d with a surge of %d", capacity, more, u.Wanted, u.Rule.Surge)
		case stopFirst && run > max(running, u.Wanted):
			t.Fatalf("%d run, then %d of %d", running, run, u.Wanted)
		case stopFirst && in < serving-1:
			t.Fatalf("%d in rotation, then %d: more than one at a time stops", serving, in)
		case !stopFirst && more < min(capacity, u.Wanted):
			t.Fatalf("%d, then %d of %d: too many drain", capacity, more, u.Wanted)
		}
	})
}

func TestOneSpecWithStopFirstIsEnough(t *testing.T) {
	start, stop := pando.Spec{}.WithDefaults(), pando.Spec{}
	stop.Rollout.Order = pando.StopFirst
	for _, c := range []struct {
		newest  pando.Spec
		running []pando.Spec
		want    bool
	}{
		{start, nil, false}, {start, []pando.Spec{start}, false}, {stop, []pando.Spec{start}, true},
		{start, []pando.Spec{start, stop}, true}, {stop, nil, true},
	} {
		if got := StopFirst(c.newest, c.running...); got != c.want {
			t.Errorf("newest %q, %d running: %t", c.newest.Rollout.Order, len(c.running), got)
		}
	}
}
