package scale

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pando.run/pando"
)

// someone draws an instance in any phase that a record can have.
func someone(t *rapid.T, n int) pando.Instance {
	i := pando.Instance{
		ID:       pando.InstanceID(fmt.Sprint("web-", n)),
		Revision: rapid.IntRange(1, 2).Draw(t, "revision"),
		Warm:     rapid.IntRange(0, 4).Draw(t, "warm") == 0,
		Born:     t0.Add(time.Duration(rapid.IntRange(0, 9).Draw(t, "born")) * time.Second),
		Role:     rapid.SampledFrom([]pando.Role{pando.RoleFirst, pando.RoleReplica}).Draw(t, "role"),
		Phase: rapid.SampledFrom([]pando.Phase{
			pando.PhasePlaced, pando.PhaseStarting, pando.PhaseWarm, pando.PhaseReady,
			pando.PhaseInRotation, pando.PhaseDraining, pando.PhaseDrained, pando.PhaseFailed,
		}).Draw(t, "phase"),
	}
	i.Warm = i.Warm && !i.Phase.TakesFlows() || i.Phase == pando.PhaseWarm
	return i
}

func some(t *rapid.T) (out []pando.Instance) {
	for n := range rapid.IntRange(0, 12).Draw(t, "instances") {
		out = append(out, someone(t, n))
	}
	return out
}

// carryOut returns the instances after some moves, as control carries them out.
func carryOut(t *rapid.T, all []pando.Instance, revision int, moves []Move) []pando.Instance {
	out := append([]pando.Instance(nil), all...)
	for n, m := range moves {
		if m.Reason == "" {
			t.Fatalf("move %d has no reason", n)
		}
		if m.Drain == "" {
			out = append(out, pando.Instance{
				ID: pando.InstanceID(fmt.Sprint("new-", n)), Revision: revision, Warm: m.Warm,
				Phase: pando.PhasePlaced,
			})
			continue
		}
		found := false
		for k := range out {
			if out[k].ID == m.Drain {
				found = true
				out[k] = out[k].Become(pando.PhaseDraining, t0, m.Reason) // panics on an illegal step
			}
		}
		if !found {
			t.Fatalf("%s is not there", m.Drain)
		}
	}
	return out
}

func TestHoldFillsToTheLeastAndNeverPassesTheMost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		least := rapid.IntRange(0, 6).Draw(t, "least")
		r := Range{Least: least, Most: least + rapid.IntRange(0, 4).Draw(t, "room"), Why: "test"}
		all := some(t)
		before := CountOf(all)
		after := CountOf(carryOut(t, all, 1, Hold(r, all, false)))
		switch {
		case before.Capacity < r.Least && after.Capacity != r.Least:
			t.Fatalf("%d of at least %d become %d", before.Capacity, r.Least, after.Capacity)
		case before.Capacity > r.Most && after.Capacity < r.Most:
			t.Fatalf("%d of at most %d become %d: too many leave", before.Capacity, r.Most, after.Capacity)
		case before.Capacity > r.Most && after.Capacity > r.Most && after.Serving > 0:
			t.Fatalf("%d of at most %d become %d: too few leave", before.Capacity, r.Most, after.Capacity)
		}
		if within := before.Capacity >= r.Least && before.Capacity <= r.Most; within && after != before {
			t.Fatalf("%+v is within %+v and becomes %+v", before, r, after)
		}
	})
}

func TestHoldWithStopFirstNeverRunsMoreThanTheMost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		least := rapid.IntRange(0, 6).Draw(t, "least")
		r := Range{Least: least, Most: least + rapid.IntRange(0, 4).Draw(t, "room"), Why: "test"}
		all := some(t)
		before, after := CountOf(all), CountOf(carryOut(t, all, 1, Hold(r, all, true)))
		if after.Present > max(before.Present, r.Most) {
			t.Fatalf("%d are present, then %d, at most %d may be", before.Present, after.Present, r.Most)
		}
		if before.Capacity < r.Least && after.Capacity < r.Least && after.Present < r.Most {
			t.Fatalf("%d of %d start although there is room", after.Capacity, r.Least)
		}
	})
}

func TestTheYoungestReplicaLeavesFirstAndTheFirstInstanceLast(t *testing.T) {
	in, starting := pando.PhaseInRotation, pando.PhaseStarting
	all := instances(in, in, in, starting, in)
	all[4].Role = pando.RoleFirst // as after the loss of all others
	var got []string
	for _, m := range Shed(all, 9, "test") {
		got = append(got, string(m.Drain))
	}
	if order := strings.Join(got, " "); order != "web-2 web-1 web-0 web-4" {
		t.Errorf("they leave in the order %s", order)
	}
	if y, ok := Youngest(all); !ok || y.ID != "web-2" {
		t.Errorf("the youngest is %s", y.ID)
	}
	if _, ok := Youngest(instances(starting)); ok {
		t.Error("an instance that starts takes no flows and leaves nonetheless")
	}
	for _, n := range []int{0, -1} {
		if m := Shed(all, n, "test"); len(m) != 0 {
			t.Errorf("%d are shed for %d", len(m), n)
		}
	}
}

func TestAPinReplacesTheBoundsButNeverOneWriter(t *testing.T) {
	two := pando.Spec{Scale: pando.Scale{Min: 2, Max: 4}}
	one := pando.Spec{Scale: pando.Scale{Max: 1}}.WithDefaults()
	pin := func(n int, left time.Duration) *pando.Pin {
		return &pando.Pin{Instances: n, Until: t0.Add(left), By: pando.Asker{Kind: pando.AskerOperator}}
	}
	for _, c := range []struct {
		name        string
		spec        pando.Spec
		pin         *pando.Pin
		least, most int
		why         string
	}{
		{"no pin", two, nil, 2, 4, "min 2, max 4"},
		{"a pin beyond max", two, pin(9, time.Hour), 9, 9, "operator pinned 9 until 04:04:05Z"},
		{"a pin of 0", two, pin(0, time.Hour), 0, 0, "pinned 0"},
		{"a pin that ended", two, pin(9, 0), 2, 4, "min 2"},

		{"one writer", one, nil, 1, 1, "min 1"},
		{"a pin of 3", one, pin(3, time.Hour), 1, 1, "stop-first"},
		{"a pin of 0", one, pin(0, time.Hour), 0, 0, "pinned 0"},
	} {
		r := Bounds(c.spec, c.pin, t0)
		if r.Least != c.least || r.Most != c.most || !strings.Contains(r.Why, c.why) {
			t.Errorf("%s: got %+v, want %d to %d, %q", c.name, r, c.least, c.most, c.why)
		}
	}
}

func TestInstancesThatFinishedAreNotReplaced(t *testing.T) {
	r := Range{Least: 3, Most: 5, Why: "test"}
	for ended, starts := range map[int]int{0: 3, 1: 2, 3: 0, 9: 0} {
		if got := len(Hold(r.Ended(ended), nil, false)); got != starts {
			t.Errorf("after %d of 3 ended %d start, want %d", ended, got, starts)
		}
	}
}

func TestAPinLeavesAsManyAsItFound(t *testing.T) {
	for _, c := range []struct {
		before, least int
		by            pando.Metric
		stay          int
		ok            bool
	}{
		{2, 1, pando.ByNothing, 2, true},
		{1, 3, pando.ByNothing, 3, true}, // min has grown meanwhile
		{2, 1, pando.ByPackets, 2, false},
	} {
		stay, why, ok := AfterPin(pando.Pin{Before: c.before}, pando.Scale{Min: c.least, By: c.by})
		if stay != c.stay || ok != c.ok || why == "" {
			t.Errorf("%+v: %d stay (%s), %t", c, stay, why, ok)
		}
	}
}

func TestTheReserveIsAsWantedAndOfOneRevision(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := some(t)
		wanted, revision := rapid.IntRange(0, 4).Draw(t, "wanted"), rapid.IntRange(1, 2).Draw(t, "of")
		before := CountOf(all)
		drains, starts := KeepWarm(all, wanted, revision)
		all = carryOut(t, all, revision, append(drains, starts...))
		n := 0
		for _, i := range all {
			switch {
			case !i.Warm || i.Phase.Leaving() || i.Phase == pando.PhaseFailed:
			case i.Revision != revision:
				t.Fatalf("%s of revision %d stays in a reserve of %d", i.ID, i.Revision, revision)
			default:
				n++
			}
		}
		if n != wanted || CountOf(all).Capacity != before.Capacity {
			t.Fatalf("%d in reserve, want %d; %+v were %+v", n, wanted, CountOf(all), before)
		}
		if again, more := KeepWarm(all, wanted, revision); len(again)+len(more) != 0 {
			t.Fatalf("a full reserve wants %v, %v", again, more)
		}
	})
}

func TestACountFollowsEveryChange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := some(t)
		c := CountOf(all)
		for n := range rapid.IntRange(0, 20).Draw(t, "changes") {
			i := someone(t, 100+n)
			k := rapid.IntRange(0, len(all)).Draw(t, "which")
			if c = c.With(i); k == len(all) {
				all = append(all, i)
				continue
			}
			c = c.Without(all[k])
			all[k] = i
		}
		half := len(all) / 2
		if c != CountOf(all) || c != CountOf(all[:half]).Plus(CountOf(all[half:])) {
			t.Fatalf("followed: %+v, counted: %+v", c, CountOf(all))
		}
	})
}

func TestOnlyAsksOfOthersGrantedInTheLastSecondAreGrants(t *testing.T) {
	intent := func(
		id string, verb pando.Verb, by pando.AskerKind, steps ...time.Duration,
	) pando.Intent {
		i := pando.Intent{ID: pando.IntentID(id), Verb: verb, By: pando.Asker{Kind: by}}
		for n, ago := range steps {
			state := []pando.IntentState{pando.IntentAsked, pando.IntentGranted, pando.IntentPlaced}[n]
			i = i.Become(state, t0.Add(-ago), "test")
		}
		return i
	}
	const ms = time.Millisecond
	got := ""
	for _, g := range MergeGrants([]Grant{{Intent: "now", At: t0}}, Grants([]pando.Intent{
		intent("late", pando.VerbReplicate, pando.AskerInstance, 9*ms, 9*ms, ms),
		intent("early", pando.VerbReplicate, pando.AskerScaler, 3000*ms, 1000*ms, ms),
		intent("old", pando.VerbReplicate, pando.AskerInstance, 1001*ms, 1001*ms, ms),
		intent("asked", pando.VerbReplicate, pando.AskerInstance, ms),
		intent("halt", pando.VerbHalt, pando.AskerInstance, ms, ms),
		intent("own", pando.VerbReplicate, pando.AskerControl, ms, ms),
	}, t0)) {
		got += string(g.Intent) + " "
	}
	if got != "early late now " {
		t.Errorf("the grants are %s", got)
	}
}

func TestTheReserveCountsForNothing(t *testing.T) {
	for _, c := range []struct {
		phase pando.Phase
		want  Count
	}{
		{pando.PhasePlaced, Count{Capacity: 1, Present: 1}},
		{pando.PhaseReady, Count{Capacity: 1, Serving: 1, Present: 1}},
		{pando.PhaseInRotation, Count{Capacity: 1, Serving: 1, InRotation: 1, Present: 1}},
		{pando.PhaseDraining, Count{Present: 1}},
		{pando.PhaseFailed, Count{Present: 1}},
	} {
		all := instances(c.phase)
		if got := CountOf(all); got != c.want {
			t.Errorf("one that is %s counts as %+v, want %+v", c.phase, got, c.want)
		}
		all[0].Warm = true
		if got := CountOf(all); !c.phase.TakesFlows() && got != (Count{}) {
			t.Errorf("one of the reserve that is %s counts as %+v", c.phase, got)
		}
	}
}
