package control

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide"
)

// A new revision that serves and then crashes is tried three times, at growing intervals. Then the
// old revision stays.
func TestARevisionThatCrashesAfterItWasReadyIsTriedThreeTimes(t *testing.T) {
	tb := serving(t)
	tb.deploy(2, func(s *pando.Spec) { s.Rollout.HealthySeconds = 5 })
	var at []time.Time
	for range 600 { // a minute
		tb.settle()
		tb.run()
		for _, i := range tb.w.Of(web) {
			if i.Revision == 2 && i.Phase == pando.PhaseInRotation &&
				tb.now.Sub(i.Since) >= 200*time.Millisecond {
				tb.fail(i, 1)
				at = append(at, tb.now)
			}
		}
		tb.now = tb.now.Add(100 * time.Millisecond)
	}
	svc := tb.w.Services[web].V
	if len(at) != 3 || svc.Target != 1 || svc.Phase != pando.ServiceServing ||
		tb.count(pando.PhaseInRotation) != 2 {
		t.Errorf("tried at %v; target %d, %s with %d in rotation; want three, then revision 1",
			at, svc.Target, svc.Phase, tb.count(pando.PhaseInRotation))
	}
	for _, v := range tb.w.DecisionsOf(web) {
		if v.Kind == pando.DecidedRollback && (!strings.Contains(
			v.Reason, "3 of revision 2 failed, the last because it exited") || len(v.Lines) == 0) {
			t.Errorf("rolled back: %s %q", v.Reason, v.Lines)
		}
	}
}

// Failures of a failed revision do not hold back instances of the revision that replaces it again.
func TestAFailedRevisionDoesNotHoldBackTheOldOne(t *testing.T) {
	tb := serving(t)
	tb.deploy(2, nil)
	tb.crash(2, 3)
	tb.fail(tb.w.Of(web)[0], 1)
	tb.settle()
	if n := tb.count(pando.PhasePlaced) + tb.count(pando.PhaseInRotation); n != 2 {
		t.Errorf("%d of 2 instances after one of the old revision failed", n)
	}
}

// A finished job is not started again, even after many more decisions about its service.
func TestAFinishedJobStaysFinishedWhenHistoryIsTrimmed(t *testing.T) {
	tb := newTable(t)
	tb.deploy(1,
		func(s *pando.Spec) { s.Restart, s.Scale = pando.RestartOnFailure, pando.Scale{Min: 2, Max: 4} })
	tb.settle()
	tb.run()
	tb.settle()
	for _, i := range tb.w.Of(web) {
		tb.fail(i, 0)
	}
	for range 3 * decide.DecisionsKept {
		tb.now = tb.now.Add(time.Second)
		tb.put(pando.Decision{
			ID: tb.ids.Sequential(tb.now), Service: web, Kind: pando.DecidedPin, At: tb.now,
		})
		tb.settle()
		if n := len(tb.w.Of(web)); n != 0 {
			t.Fatalf("%d instances of a finished job after %d decisions", n, len(tb.w.DecisionsOf(web)))
		}
	}
	if n := len(tb.w.DecisionsOf(web)); n > decide.DecisionsKept+5 {
		t.Errorf("%d decisions are kept", n)
	}
}

// lonely returns a table of a service with one writer that serves.
func lonely(t *testing.T) *table {
	tb := newTable(t)
	tb.deploy(1, func(s *pando.Spec) { s.Scale = pando.Scale{Max: 1} })
	tb.settle()
	tb.run()
	tb.settle()
	if n := tb.count(pando.PhaseInRotation); n != 1 {
		t.Fatalf("%d in rotation", n)
	}
	return tb
}

// until settles the table and lets instances take their steps until done returns true. It fails
// when two instances have a record.
func (tb *table) until(what string, done func() bool) {
	tb.t.Helper()
	for range 300 {
		tb.settle()
		if all := tb.w.Of(web); len(all) > 1 {
			tb.t.Fatalf("%s: %d instances of one writer are there: %v", what, len(all), all)
		}
		if done() {
			return
		}
		if tb.now = tb.now.Add(100 * time.Millisecond); tb.now.Nanosecond() == 0 {
			tb.run() // once per second, so that drains take time
		}
	}
	tb.t.Fatalf("%s: it never comes to that: %+v, %v", what, tb.w.Services[web].V, tb.w.Of(web))
}

func (tb *table) serves(revision int) func() bool {
	return func() bool {
		all := tb.w.Of(web)
		svc := tb.w.Services[web].V
		return len(all) == 1 && all[0].Phase == pando.PhaseInRotation && all[0].Revision == revision &&
			svc.Phase == pando.ServiceServing && svc.Current == revision
	}
}

func TestOneWriterNeverRunsTwice(t *testing.T) {
	one := func(s *pando.Spec) { s.Scale = pando.Scale{Max: 1} }
	tb := lonely(t)
	tb.now = t0.Truncate(time.Second)
	tb.deploy(2, one)
	tb.until("a rollout", tb.serves(2))

	tb.deploy(3, one)
	failed := 0
	tb.until("a rollout that fails", func() bool {
		for _, i := range tb.w.Of(web) {
			if i.Revision == 3 {
				tb.fail(i, 1)
				failed++
			}
		}
		return tb.serves(2)() && failed > 0
	})
	if failed != 3 {
		t.Errorf("the new revision was tried %d times, want 3", failed)
	}

	halt := tb.ask(pando.VerbHalt, tb.w.Of(web)[0].ID)
	tb.pin(&pando.Pin{Instances: 0})
	tb.until("a halt", func() bool { return tb.count(pando.PhaseDraining) == 1 })
	tb.pin(nil)
	asked := tb.ask(pando.VerbReplicate, tb.w.Of(web)[0].ID)
	tb.until("what follows a halt", tb.serves(2))
	i := tb.w.Intents[asked].V
	if i.State != pando.IntentRefused || !strings.Contains(i.Reason, "still ends") {
		t.Errorf("an ask while the only instance drains is %s: %s (the halt is %s)",
			i.State, i.Reason, tb.w.Intents[halt].V.State)
	}

	tb.pin(&pando.Pin{Instances: 3}) // a pin from before the spec had max: 1
	tb.until("a pin", tb.serves(2))
	tb.now = tb.now.Add(time.Second)
	tb.until("a pin", tb.serves(2))
	tb.pin(nil)

	tb.put(pando.Host{Name: "h2"}, pando.Host{Name: "h1", Leaving: true})
	tb.until("a host that leaves",
		func() bool { return tb.serves(2)() && tb.on("h2", pando.PhaseInRotation) == 1 })

	tb.fail(tb.w.Of(web)[0], 1)
	tb.until("a crash", tb.serves(2))

	// Once this revision serves, the service is no longer a single writer.
	tb.deploy(4, func(s *pando.Spec) { s.Scale = pando.Scale{Min: 1, Max: 2} })
	tb.until("a spec of two", tb.serves(4))
	tb.pin(&pando.Pin{Instances: 2})
	tb.settle()
	if n := len(tb.w.Of(web)); n != 2 {
		t.Errorf("%d instances of a service that may have 2", n)
	}
}

func TestAPinOfOneWriterIsRefused(t *testing.T) {
	lead(t, time.Millisecond, func(t *testing.T, l leadership) {
		by := pando.Asker{Kind: pando.AskerOperator}
		spec := pando.Spec{Name: "db", Command: []string{"true"}, Scale: pando.Scale{Max: 1}}
		if _, err := l.Deploy(t.Context(), spec, by); err != nil {
			t.Fatal(err)
		}
		_, err := l.Pin(t.Context(), spec.Key(), 2, 0, by)
		if !errors.Is(err, pando.ErrRefused) || !strings.Contains(err.Error(), "raise scale.max") {
			t.Errorf("a pin of 2 where one may run: %v", err)
		}
		for n := range 2 {
			if _, err := l.Pin(t.Context(), spec.Key(), n, 0, by); err != nil {
				t.Errorf("a pin of %d: %v", n, err)
			}
		}
		// The budget is 3, but a pin is stronger.
		if _, err := l.Pin(t.Context(), web, 9, 0, by); err != nil {
			t.Error(err)
		}
	})
}

// A stop-first service never runs more instances than its maximum, including those that drain.
func TestStopFirstHoldsItsMaximumWhileInstancesDrain(t *testing.T) {
	tb := newTable(t)
	of := func(s *pando.Spec) {
		s.Rollout.Order, s.Scale = pando.StopFirst, pando.Scale{Min: 3, Max: 3}
	}
	tb.deploy(1, of)
	tb.settle()
	tb.run()
	tb.settle()
	tb.deploy(2, of)
	var most, least int
	for n := range 100 {
		tb.settle()
		most = max(most, len(tb.w.Of(web)))
		if least = 3; tb.count(pando.PhaseInRotation) < 2 {
			t.Fatalf("%d in rotation", tb.count(pando.PhaseInRotation))
		}
		if tb.now = tb.now.Add(time.Second); n%3 == 0 {
			tb.run()
		}
	}
	svc := tb.w.Services[web].V
	if most > least || svc.Current != 2 || svc.Phase != pando.ServiceServing {
		t.Errorf("%d ran at once; revision %d, %s", most, svc.Current, svc.Phase)
	}
	if !slices.ContainsFunc(tb.w.DecisionsOf(web), func(d pando.Decision) bool {
		return strings.Contains(d.Reason, "stop-first")
	}) {
		t.Error(fmt.Sprint("no decision has the reason why one ended first: ", tb.w.DecisionsOf(web)))
	}
}

func TestTheTriesOfARevisionThatFailsAtOnceAreApart(t *testing.T) {
	tb := serving(t)
	tb.deploy(2, nil)
	fresh := func() (out []pando.Instance) {
		for _, i := range tb.w.Of(web) {
			if i.Revision == 2 {
				out = append(out, i)
			}
		}
		return out
	}
	for range 2 {
		tb.settle()
		if n := len(fresh()); n != 1 {
			t.Fatalf("%d of the new revision are placed, want 1 at once", n)
		}
		tb.fail(fresh()[0], 1)
	}
	tb.settle()
	_, wake := decide.Decide(tb.w, web, tb.now, tb.ids)
	if n := len(fresh()); n != 0 || !wake.After(tb.now) {
		t.Fatalf("after two failures %d are placed at once; looks again at %s", n, wake)
	}
	tb.now = wake
	tb.settle()
	if n := len(fresh()); n != 1 {
		t.Errorf("%d are placed after the wait", n)
	}
}

// notes returns the decisions of control to wait.
func (tb *table) notes() (out []string) {
	for _, v := range tb.w.DecisionsOf(web) {
		if v.Kind == pando.DecidedHostLost {
			out = append(out, v.Reason)
		}
	}
	return out
}

// A rollout for which no host has room waits, with the reason, and continues when there is room. It
// used to fill one decision after the other with failed asks, without an end.
func TestARolloutWithoutRoomWaits(t *testing.T) {
	tb := serving(t)
	tb.put(pando.Host{Name: "h1", Memory: 1 << 30})
	tb.deploy(2, func(s *pando.Spec) { s.Resources.MemoryBytes = 1 << 40 })
	asks := len(tb.w.IntentsOf(web))
	for range 60 {
		tb.settle()
		tb.now = tb.now.Add(10 * time.Second)
	}
	if n := len(tb.w.IntentsOf(web)); n != asks {
		t.Errorf("%d asks without room", n-asks)
	}
	svc := tb.w.Services[web].V
	if svc.Phase != pando.ServiceRolling || !strings.Contains(svc.Reason, "no host has room") ||
		tb.count(pando.PhaseInRotation) != 2 {
		t.Errorf("%s: %s, with %d in rotation", svc.Phase, svc.Reason, tb.count(pando.PhaseInRotation))
	}
	if notes := tb.notes(); len(notes) != 1 || !strings.Contains(notes[0], "no host has room") {
		t.Errorf("`why` would print %q, want one reason", notes)
	}
	if _, wake := decide.Decide(tb.w, web, tb.now, tb.ids); !wake.Equal(tb.now.Add(decide.RoomLook)) {
		t.Errorf("the next look is at %s, now is %s", wake, tb.now)
	}
	tb.put(pando.Host{Name: "h1", Memory: 1 << 43})
	for range 60 {
		tb.settle()
		tb.run()
		tb.now = tb.now.Add(time.Second)
	}
	if svc := tb.w.Services[web].V; svc.Current != 2 || svc.Phase != pando.ServiceServing {
		t.Errorf("with room, revision %d is current, %s", svc.Current, svc.Phase)
	}
}

// The part of a service that has room runs, and the other part waits. An ask of an instance gets
// its answer.
func TestAMinimumWithoutRoomWaits(t *testing.T) {
	tb := newTable(t)
	tb.put(pando.Host{Name: "h1", Memory: 1 << 30})
	tb.deploy(1, func(s *pando.Spec) {
		s.Scale = pando.Scale{Min: 100, Max: 200, Warm: 3}
		s.Resources.MemoryBytes = 300 << 20
	})
	tb.settle()
	tb.run()
	tb.settle()
	if n := tb.count(pando.PhaseInRotation); n != 3 {
		t.Errorf("%d instances of 300 MiB on a host with 1 GiB, want 3", n)
	}
	svc := tb.w.Services[web].V
	if svc.Phase != pando.ServiceDegraded || !strings.Contains(svc.Reason, "no host has room") {
		t.Errorf("%s: %s", svc.Phase, svc.Reason)
	}
	if all, notes := len(tb.w.IntentsOf(web)), tb.notes(); all != 3 || len(notes) != 1 {
		t.Errorf("%d asks and %q, want 3 and one reason", all, notes)
	}
	ask := tb.ask(pando.VerbReplicate, tb.w.Of(web)[0].ID)
	tb.settle()
	if i := tb.w.Intents[ask].V; i.State != pando.IntentFailed ||
		!strings.Contains(i.Reason, "no host has room") {
		t.Errorf("the ask of an instance is %s: %s", i.State, i.Reason)
	}
}
