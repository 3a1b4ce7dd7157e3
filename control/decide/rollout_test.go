package decide_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide"
	"pando.run/pando/control/decide/decidetest"
)

// A new revision that serves and then crashes is tried three times, at growing intervals. Then the
// old revision stays.
func TestARevisionThatCrashesAfterItWasReadyIsTriedThreeTimes(t *testing.T) {
	tb := decidetest.Serving(t)
	tb.Deploy(2, func(s *pando.Spec) { s.Rollout.HealthySeconds = 5 })
	var at []time.Time
	for range 600 { // a minute
		tb.Settle()
		tb.Run()
		for _, i := range tb.W.Of(web) {
			if i.Revision == 2 && i.Phase == pando.PhaseInRotation &&
				tb.Now.Sub(i.Since) >= 200*time.Millisecond {
				tb.Fail(i, 1)
				at = append(at, tb.Now)
			}
		}
		tb.Now = tb.Now.Add(100 * time.Millisecond)
	}
	svc := tb.W.Services[web].V
	if len(at) != 3 || svc.Target != 1 || svc.Phase != pando.ServiceServing ||
		tb.Count(pando.PhaseInRotation) != 2 {
		t.Errorf("tried at %v; target %d, %s with %d in rotation; want three, then revision 1",
			at, svc.Target, svc.Phase, tb.Count(pando.PhaseInRotation))
	}
	for _, v := range tb.W.DecisionsOf(web) {
		if v.Kind == pando.DecidedRollback && (!strings.Contains(
			v.Reason, "3 of revision 2 failed, the last because it exited") || len(v.Lines) == 0) {
			t.Errorf("rolled back: %s %q", v.Reason, v.Lines)
		}
	}
}

// Failures of a failed revision do not hold back instances of the revision that replaces it again.
func TestAFailedRevisionDoesNotHoldBackTheOldOne(t *testing.T) {
	tb := decidetest.Serving(t)
	tb.Deploy(2, nil)
	tb.Crash(2, 3)
	tb.Fail(tb.W.Of(web)[0], 1)
	tb.Settle()
	if n := tb.Count(pando.PhasePlaced) + tb.Count(pando.PhaseInRotation); n != 2 {
		t.Errorf("%d of 2 instances after one of the old revision failed", n)
	}
}

// A finished job is not started again, even after many more decisions about its service.
func TestAFinishedJobStaysFinishedWhenHistoryIsTrimmed(t *testing.T) {
	tb := decidetest.New(t)
	tb.Deploy(1,
		func(s *pando.Spec) { s.Restart, s.Scale = pando.RestartOnFailure, pando.Scale{Min: 2, Max: 4} })
	tb.Settle()
	tb.Run()
	tb.Settle()
	for _, i := range tb.W.Of(web) {
		tb.Fail(i, 0)
	}
	for range 3 * decide.DecisionsKept {
		tb.Now = tb.Now.Add(time.Second)
		tb.Put(pando.Decision{
			ID: tb.IDs.Sequential(tb.Now), Service: web, Kind: pando.DecidedPin, At: tb.Now,
		})
		tb.Settle()
		if n := len(tb.W.Of(web)); n != 0 {
			t.Fatalf("%d instances of a finished job after %d decisions", n, len(tb.W.DecisionsOf(web)))
		}
	}
	if n := len(tb.W.DecisionsOf(web)); n > decide.DecisionsKept+5 {
		t.Errorf("%d decisions are kept", n)
	}
}

// lonely returns a table of a service with one writer that serves.
func lonely(t *testing.T) *decidetest.Table {
	tb := decidetest.New(t)
	tb.Deploy(1, func(s *pando.Spec) { s.Scale = pando.Scale{Max: 1} })
	tb.Settle()
	tb.Run()
	tb.Settle()
	if n := tb.Count(pando.PhaseInRotation); n != 1 {
		t.Fatalf("%d in rotation", n)
	}
	return tb
}

func TestOneWriterNeverRunsTwice(t *testing.T) {
	one := func(s *pando.Spec) { s.Scale = pando.Scale{Max: 1} }
	tb := lonely(t)
	tb.Now = t0.Truncate(time.Second)
	tb.Deploy(2, one)
	tb.Until("a rollout", tb.Serves(2))

	tb.Deploy(3, one)
	failed := 0
	tb.Until("a rollout that fails", func() bool {
		for _, i := range tb.W.Of(web) {
			if i.Revision == 3 {
				tb.Fail(i, 1)
				failed++
			}
		}
		return tb.Serves(2)() && failed > 0
	})
	if failed != 3 {
		t.Errorf("the new revision was tried %d times, want 3", failed)
	}

	halt := tb.Ask(pando.VerbHalt, tb.W.Of(web)[0].ID)
	tb.Pin(&pando.Pin{Instances: 0})
	tb.Until("a halt", func() bool { return tb.Count(pando.PhaseDraining) == 1 })
	tb.Pin(nil)
	asked := tb.Ask(pando.VerbReplicate, tb.W.Of(web)[0].ID)
	tb.Until("what follows a halt", tb.Serves(2))
	i := tb.W.Intents[asked].V
	if i.State != pando.IntentRefused || !strings.Contains(i.Reason, "still ends") {
		t.Errorf("an ask while the only instance drains is %s: %s (the halt is %s)",
			i.State, i.Reason, tb.W.Intents[halt].V.State)
	}

	tb.Pin(&pando.Pin{Instances: 3}) // a pin from before the spec had max: 1
	tb.Until("a pin", tb.Serves(2))
	tb.Now = tb.Now.Add(time.Second)
	tb.Until("a pin", tb.Serves(2))
	tb.Pin(nil)

	tb.Put(pando.Host{Name: "h2"}, pando.Host{Name: "h1", Leaving: true})
	tb.Until("a host that leaves",
		func() bool { return tb.Serves(2)() && tb.On("h2", pando.PhaseInRotation) == 1 })

	tb.Fail(tb.W.Of(web)[0], 1)
	tb.Until("a crash", tb.Serves(2))

	// Once this revision serves, the service is no longer a single writer.
	tb.Deploy(4, func(s *pando.Spec) { s.Scale = pando.Scale{Min: 1, Max: 2} })
	tb.Until("a spec of two", tb.Serves(4))
	tb.Pin(&pando.Pin{Instances: 2})
	tb.Settle()
	if n := len(tb.W.Of(web)); n != 2 {
		t.Errorf("%d instances of a service that may have 2", n)
	}
}

// A stop-first service never runs more instances than its maximum, including those that drain.
func TestStopFirstHoldsItsMaximumWhileInstancesDrain(t *testing.T) {
	tb := decidetest.New(t)
	of := func(s *pando.Spec) {
		s.Rollout.Order, s.Scale = pando.StopFirst, pando.Scale{Min: 3, Max: 3}
	}
	tb.Deploy(1, of)
	tb.Settle()
	tb.Run()
	tb.Settle()
	tb.Deploy(2, of)
	var most, least int
	for n := range 100 {
		tb.Settle()
		most = max(most, len(tb.W.Of(web)))
		if least = 3; tb.Count(pando.PhaseInRotation) < 2 {
			t.Fatalf("%d in rotation", tb.Count(pando.PhaseInRotation))
		}
		if tb.Now = tb.Now.Add(time.Second); n%3 == 0 {
			tb.Run()
		}
	}
	svc := tb.W.Services[web].V
	if most > least || svc.Current != 2 || svc.Phase != pando.ServiceServing {
		t.Errorf("%d ran at once; revision %d, %s", most, svc.Current, svc.Phase)
	}
	if !slices.ContainsFunc(tb.W.DecisionsOf(web), func(d pando.Decision) bool {
		return strings.Contains(d.Reason, "stop-first")
	}) {
		t.Error(fmt.Sprint("no decision has the reason why one ended first: ", tb.W.DecisionsOf(web)))
	}
}

func TestTheTriesOfARevisionThatFailsAtOnceAreApart(t *testing.T) {
	tb := decidetest.Serving(t)
	tb.Deploy(2, nil)
	fresh := func() (out []pando.Instance) {
		for _, i := range tb.W.Of(web) {
			if i.Revision == 2 {
				out = append(out, i)
			}
		}
		return out
	}
	for range 2 {
		tb.Settle()
		if n := len(fresh()); n != 1 {
			t.Fatalf("%d of the new revision are placed, want 1 at once", n)
		}
		tb.Fail(fresh()[0], 1)
	}
	tb.Settle()
	_, wake := decide.Decide(tb.W, web, tb.Now, tb.IDs)
	if n := len(fresh()); n != 0 || !wake.After(tb.Now) {
		t.Fatalf("after two failures %d are placed at once; looks again at %s", n, wake)
	}
	tb.Now = wake
	tb.Settle()
	if n := len(fresh()); n != 1 {
		t.Errorf("%d are placed after the wait", n)
	}
}

// A rollout for which no host has room waits, with the reason, and continues when there is room. It
// used to fill one decision after the other with failed asks, without an end.
func TestARolloutWithoutRoomWaits(t *testing.T) {
	tb := decidetest.Serving(t)
	tb.Put(pando.Host{Name: "h1", Memory: 1 << 30})
	tb.Deploy(2, func(s *pando.Spec) { s.Resources.MemoryBytes = 1 << 40 })
	asks := len(tb.W.IntentsOf(web))
	for range 60 {
		tb.Settle()
		tb.Now = tb.Now.Add(10 * time.Second)
	}
	if n := len(tb.W.IntentsOf(web)); n != asks {
		t.Errorf("%d asks without room", n-asks)
	}
	svc := tb.W.Services[web].V
	if svc.Phase != pando.ServiceRolling || !strings.Contains(svc.Reason, "no host has room") ||
		tb.Count(pando.PhaseInRotation) != 2 {
		t.Errorf("%s: %s, with %d in rotation", svc.Phase, svc.Reason, tb.Count(pando.PhaseInRotation))
	}
	if notes := tb.Notes(); len(notes) != 1 || !strings.Contains(notes[0], "no host has room") {
		t.Errorf("`why` would print %q, want one reason", notes)
	}
	if _, wake := decide.Decide(tb.W, web, tb.Now, tb.IDs); !wake.Equal(tb.Now.Add(decide.RoomLook)) {
		t.Errorf("the next look is at %s, now is %s", wake, tb.Now)
	}
	tb.Put(pando.Host{Name: "h1", Memory: 1 << 43})
	for range 60 {
		tb.Settle()
		tb.Run()
		tb.Now = tb.Now.Add(time.Second)
	}
	if svc := tb.W.Services[web].V; svc.Current != 2 || svc.Phase != pando.ServiceServing {
		t.Errorf("with room, revision %d is current, %s", svc.Current, svc.Phase)
	}
}

// The part of a service that has room runs, and the other part waits. An ask of an instance gets
// its answer.
func TestAMinimumWithoutRoomWaits(t *testing.T) {
	tb := decidetest.New(t)
	tb.Put(pando.Host{Name: "h1", Memory: 1 << 30})
	tb.Deploy(1, func(s *pando.Spec) {
		s.Scale = pando.Scale{Min: 100, Max: 200, Warm: 3}
		s.Resources.MemoryBytes = 300 << 20
	})
	tb.Settle()
	tb.Run()
	tb.Settle()
	if n := tb.Count(pando.PhaseInRotation); n != 3 {
		t.Errorf("%d instances of 300 MiB on a host with 1 GiB, want 3", n)
	}
	svc := tb.W.Services[web].V
	if svc.Phase != pando.ServiceDegraded || !strings.Contains(svc.Reason, "no host has room") {
		t.Errorf("%s: %s", svc.Phase, svc.Reason)
	}
	if all, notes := len(tb.W.IntentsOf(web)), tb.Notes(); all != 3 || len(notes) != 1 {
		t.Errorf("%d asks and %q, want 3 and one reason", all, notes)
	}
	ask := tb.Ask(pando.VerbReplicate, tb.W.Of(web)[0].ID)
	tb.Settle()
	if i := tb.W.Intents[ask].V; i.State != pando.IntentFailed ||
		!strings.Contains(i.Reason, "no host has room") {
		t.Errorf("the ask of an instance is %s: %s", i.State, i.Reason)
	}
}
