package lifecycle

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"pando.run/pando"
)

func TestThePhaseOfAServiceFollowsFromItsInstances(t *testing.T) {
	for _, c := range []struct {
		name   string
		facts  Case
		phase  pando.ServicePhase
		reason string
	}{
		{"new", Case{Serving: 1, Least: 2, Target: 1}, pando.ServiceDeploying, "1 of 2"},
		{"first to serve", Case{Serving: 2, Least: 2, Target: 1}, pando.ServiceServing, "2 in"},
		{"serves", Case{Serving: 3, Least: 2, Current: 1, Target: 1}, pando.ServiceServing, "3 in"},
		{"short", Case{Serving: 1, Least: 2, Current: 1, Target: 1}, pando.ServiceDegraded, "1 of 2"},
		{"rolls", Case{Serving: 1, Least: 2, Current: 1, Target: 2}, pando.ServiceRolling,
			"revision 2 takes over from 1"},
		{"rolls without room", Case{Serving: 2, Least: 2, Current: 1, Target: 2, Waits: "no room"},
			pando.ServiceRolling, "revision 2 takes over from 1: no room"},
		{"waits", Case{Serving: 1, Least: 2, Current: 1, Target: 2, Waits: "a is away"},
			pando.ServiceDegraded, "1 of 2 instances in rotation: a is away"},
		{"new and waits", Case{Least: 1, Target: 1, Waits: "no host"}, pando.ServiceDegraded, "no host"},
		{"enough serve meanwhile", Case{Serving: 2, Least: 2, Current: 1, Target: 1, Waits: "a"},
			pando.ServiceServing, "2 in"},
		{"goes", Case{Removing: true, Left: 3, Least: 2, Waits: "a"}, pando.ServiceRemoving, "3 inst"},
	} {
		j := Judge(c.facts)
		if j.Phase != c.phase || !strings.Contains(j.Reason, c.reason) {
			t.Errorf("%s: it is %s: %s; want %s: %s", c.name, j.Phase, j.Reason, c.phase, c.reason)
		}
		if j.First != (c.name == "first to serve") {
			t.Errorf("%s: the target becomes current: %t", c.name, j.First)
		}
	}
}

func TestAServiceIsServingOnlyWithItsLeastInRotation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		number := rapid.IntRange(0, 3)
		c := Case{
			Removing: rapid.Bool().Draw(t, "removing"), Serving: number.Draw(t, "serving"),
			Least: number.Draw(t, "least"), Current: number.Draw(t, "current"),
			Target: number.Draw(t, "target"), Waits: rapid.SampledFrom([]string{"", "a"}).Draw(t, "waits"),
		}
		j := Judge(c)
		if j.Phase == pando.ServiceServing && (c.Serving < c.Least || c.Removing) {
			t.Fatalf("%+v is serving", c)
		}
		if j.First && (c.Current != 0 || c.Serving < c.Least) {
			t.Fatalf("%+v: the target becomes current", c)
		}
		if j.Reason == "" {
			t.Fatalf("%+v has no reason", c)
		}
	})
}

func TestAWaitIsRecordedOnce(t *testing.T) {
	c := Case{Least: 1, Target: 1, Waits: "its state is on a, which is away"}
	first := Judge(c)
	if !strings.Contains(first.Note, c.Waits) {
		t.Errorf("on record is %q", first.Note)
	}
	c.Reason = first.Reason
	if again := Judge(c); again.Note != "" {
		t.Errorf("on record a second time is %q", again.Note)
	}
	c.Waits = "its state is on a, which leaves"
	if other := Judge(c); other.Note == "" {
		t.Error("another cause is not on record")
	}
}
