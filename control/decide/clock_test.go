package decide_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide"
	"pando.run/pando/control/decide/decidetest"
	"pando.run/pando/lifecycle"
	"pando.run/pando/scale"
	"pando.run/pando/world"
)

// skews are how far the clock of the hosts is ahead of control's.
var skews = []time.Duration{-time.Minute, 0, time.Minute}

// eachSkew runs a rule once per skew. Its outcome never depends on it.
func eachSkew(t *testing.T, rule func(t *testing.T, skew time.Duration)) {
	for _, skew := range skews {
		t.Run(skew.String(), func(t *testing.T) { rule(t, skew) })
	}
}

func exits(code float64) func(pando.Instance) (float64, bool) {
	return func(pando.Instance) (float64, bool) { return code, true }
}

func TestAProgramThatRunsOnceRunsOnceUnderAnyClock(t *testing.T) {
	eachSkew(t, func(t *testing.T, skew time.Duration) {
		tb := decidetest.New(t)
		tb.Skew = skew
		tb.Deploy(1, func(s *pando.Spec) { s.Scale.Min, s.Restart = 1, pando.RestartNo })
		tb.Pass(25*time.Second, exits(0))
		if svc := tb.W.Services[web].V; tb.Failures() != 1 || svc.Phase != pando.ServiceCompleted {
			t.Errorf("%d runs, it is %s: %s", tb.Failures(), svc.Phase, svc.Reason)
		}
	})
}

func TestACrashLoopHasABrakeUnderAnyClock(t *testing.T) {
	eachSkew(t, func(t *testing.T, skew time.Duration) {
		tb := decidetest.New(t)
		tb.Skew = skew
		tb.Deploy(1, func(s *pando.Spec) { s.Scale.Min = 1 })
		tb.Pass(25*time.Second, exits(1))
		svc := tb.W.Services[web].V
		if n := tb.Failures(); n < 8 || n > 10 || svc.Phase != pando.ServiceFailing ||
			!strings.Contains(svc.Reason, fmt.Sprintf("%d failures without a success", n)) {
			t.Errorf("%d failures, it is %s: %s", n, svc.Phase, svc.Reason)
		}
	})
}

func TestACanarySoaksUnderAnyClock(t *testing.T) {
	eachSkew(t, func(t *testing.T, skew time.Duration) {
		tb := decidetest.Serving(t)
		tb.Skew = skew
		tb.Deploy(2, func(s *pando.Spec) { s.Rollout = pando.Rollout{Canary: 0.1, SoakSeconds: 30} })
		svc := tb.W.Services[web].V
		svc.Trial = &pando.Trial{Began: tb.HostNow()} // by a server with the clock of the hosts
		tb.Put(svc)
		tb.Pass(29*time.Second, nil)
		if svc := tb.W.Services[web].V; !svc.Soaking() {
			t.Fatalf("after 29 s the canary does not soak: %+v", svc)
		}
		tb.Pass(7*time.Second, nil)
		if svc := tb.W.Services[web].V; svc.Current != 2 {
			t.Errorf("after 36 s revision %d is current: %+v", svc.Current, svc)
		}
	})
}

func TestARolloutKeepsItsDeadlineUnderAnyClock(t *testing.T) {
	eachSkew(t, func(t *testing.T, skew time.Duration) {
		tb := decidetest.Serving(t)
		tb.Skew = skew
		tb.Deploy(2, func(s *pando.Spec) {
			s.Rollout = pando.Rollout{Canary: 0.1, SoakSeconds: 120, DeadlineSeconds: 90}
		})
		svc := tb.W.Services[web].V
		svc.Trial = &pando.Trial{Began: tb.HostNow()}
		tb.Put(svc)
		tb.Pass(50*time.Second, nil)
		if svc := tb.W.Services[web].V; svc.Target != 2 {
			t.Fatal("it ended after 50 s")
		}
		tb.Pass(41*time.Second, nil)
		if svc := tb.W.Services[web].V; svc.Target != 1 {
			t.Error("it goes on after 91 s")
		}
	})
}

func TestHistoryIsTrimmedInTheOrderOfTheStore(t *testing.T) {
	eachSkew(t, func(t *testing.T, skew time.Duration) {
		tb := decidetest.Serving(t)
		const more = 40
		for n := range decide.DecisionsKept + more {
			tb.Now = tb.Now.Add(10 * time.Millisecond)
			at := tb.Now
			if n%2 == 1 {
				at = at.Add(skew)
			}
			tb.Put(pando.Decision{ID: tb.IDs.Sequential(at), Service: web, Kind: pando.DecidedConflict,
				Reason: fmt.Sprint(n), At: at})
		}
		tb.Settle()
		all := tb.W.DecisionsOf(web)
		for n, d := range all[len(all)-decide.DecisionsKept/2:] {
			if want := fmt.Sprint(decide.DecisionsKept + more - decide.DecisionsKept/2 + n); d.Reason != want {
				t.Fatalf("decision %d is %q, want %s: a newer one was trimmed", n, d.Reason, want)
			}
		}
	})
}

// The signs of an attached run come by one server's clock, and another server judges them.
func TestAnAttachedRunLivesWithItsCallerUnderAnyClock(t *testing.T) {
	eachSkew(t, func(t *testing.T, skew time.Duration) {
		tb := decidetest.Serving(t)
		tb.Begins(func(r *pando.Run) {
			r.Command, r.Want, r.Attached, r.Alive = []string{"sh"}, 1, true, tb.Now.Add(skew+1)
		})
		sign := func() {
			svc := tb.W.Services[web].V
			svc.Book = svc.Book.Clone()
			svc.Book.Runs[0].Alive = tb.Now.Add(skew + 1)
			tb.Put(svc)
		}
		for range 12 {
			tb.Now = tb.Now.Add(pando.RunAliveEvery)
			sign()
			tb.Settle()
			tb.Work()
		}
		if r := tb.NewestRun(); !r.Active() {
			t.Fatalf("it ended beside its caller: %s", r.Reason)
		}
		tb.Now = tb.Now.Add(pando.RunAliveMax - time.Second)
		tb.Settle()
		if r := tb.NewestRun(); !r.Active() {
			t.Fatalf("it ended too early: %s", r.Reason)
		}
		tb.Now = tb.Now.Add(time.Second)
		tb.Settle()
		if r := tb.NewestRun(); r.Active() {
			t.Error("it lives on without its caller")
		}
	})
}

func TestARunKeepsItsDeadlineAndItsTriesUnderAnyClock(t *testing.T) {
	eachSkew(t, func(t *testing.T, skew time.Duration) {
		tb := decidetest.Serving(t)
		tb.Skew = skew
		tb.Begins(func(r *pando.Run) {
			r.Command, r.Want, r.Retries, r.Began = []string{"x"}, 1, 50, tb.HostNow()
			r.DeadlineSeconds = 90
		})
		tries := 0
		for range 800 {
			tb.Settle()
			tb.Work()
			for _, i := range world.RunsOf(tb.W, web) {
				if i.Phase == pando.PhaseStarting {
					tb.Ends(i, 1)
					tries++
				}
			}
			tb.Now = tb.Now.Add(100 * time.Millisecond)
		}
		if r := tb.NewestRun(); tries < 8 || tries > 12 || !r.Active() {
			t.Fatalf("%d tries in 80 s: %s", tries, r.Reason)
		}
		tb.Now = tb.Now.Add(11 * time.Second)
		tb.Settle()
		if r := tb.NewestRun(); r.State != pando.RunFailed || !strings.Contains(r.Reason, "deadline") {
			t.Errorf("after 91 s it is %s: %s", r.State, r.Reason)
		}
	})
}

// The load of an instance that has served for long is unknown at the first reading. That of a new
// one is new.
func TestTheScalerTakesAnOldLoadForNewUnderNoClock(t *testing.T) {
	rule := pando.Scale{Min: 1, Max: 9, By: pando.ByConnections, Target: 10}
	eachSkew(t, func(t *testing.T, skew time.Duration) {
		for seen, want := range map[time.Duration]pando.Verb{time.Minute: "", 0: pando.VerbReplicate} {
			tb := decidetest.New(t)
			tb.Skew = skew
			i := pando.Instance{ID: "web-1", Service: web, Host: "h1", Phase: pando.PhaseInRotation,
				Since: tb.HostNow(), Born: tb.Now.Add(-time.Hour)}
			tb.Put(i)
			tb.Now = tb.Now.Add(seen)
			p, verb := &scale.Policy{}, pando.Verb("")
			for range 5 {
				sample := scale.Sample{At: tb.Now, Total: map[pando.InstanceID]float64{"web-1": 10_000}}
				verb = max(verb, p.Step(rule, decide.WithLocalTimes(tb.W, tb.W.Of(web)), sample).Verb)
				tb.Now = tb.Now.Add(200 * time.Millisecond)
			}
			if verb != want {
				t.Errorf("in rotation for %s: %q, want %q", seen, verb, want)
			}
		}
	})
}

// A grant of an earlier leader is older than a second, whatever its clock.
func TestGrantsOfAnotherClockAreNoNews(t *testing.T) {
	eachSkew(t, func(t *testing.T, skew time.Duration) {
		at := t0.Add(skew - 5*time.Second)
		i := pando.Intent{ID: "i", Verb: pando.VerbReplicate,
			By: pando.Asker{Kind: pando.AskerInstance}}.Become(pando.IntentAsked, at, "")
		i = i.Become(pando.IntentGranted, at, "")
		if got := scale.Grants([]pando.Intent{i}, t0); len(got) > 0 {
			t.Errorf("it counts as one of the last second: %v", got)
		}
	})
}

// A server that starts anew does not know how long an instance has been in rotation. It lets a
// canary soak again, and it keeps the back-off of a crash loop.
func TestANewServerTrustsNoClock(t *testing.T) {
	eachSkew(t, func(t *testing.T, skew time.Duration) {
		tb := decidetest.New(t)
		tb.Skew = skew
		tb.Deploy(1, func(s *pando.Spec) { s.Scale.Min = 1 })
		tb.Pass(25*time.Second, exits(1))
		before := tb.Failures()
		tb.Reload()
		tb.Pass(5*time.Second, exits(1))
		if n := tb.Failures(); n > before+1 {
			t.Errorf("%d failures before the start of the server, %d within 5 s after it", before, n)
		}

		tb = decidetest.Serving(t)
		tb.Skew = skew
		tb.Deploy(2, func(s *pando.Spec) { s.Rollout = pando.Rollout{Canary: 0.1, SoakSeconds: 30} })
		svc := tb.W.Services[web].V
		svc.Trial = &pando.Trial{Began: tb.Now}
		tb.Put(svc)
		tb.Pass(5*time.Second, nil)
		tb.Reload()
		tb.Pass(28*time.Second, nil)
		if svc := tb.W.Services[web].V; svc.Current != 1 || !svc.Soaking() {
			t.Errorf("the canary passed early: %+v", svc)
		}
	})
}

// An instance that serves for long enough ends the back-off, and the next failure of the service
// does not bring it back.
func TestASuccessEndsTheBackOff(t *testing.T) {
	eachSkew(t, func(t *testing.T, skew time.Duration) {
		tb := decidetest.New(t)
		tb.Skew = skew
		tb.Deploy(1, func(s *pando.Spec) { s.Scale.Min = 1 })
		tb.Pass(20*time.Second, exits(1))
		tb.Pass(2*lifecycle.Healed, nil)
		if svc := tb.W.Services[web].V; svc.Phase != pando.ServiceServing {
			t.Fatalf("it is %s: %s", svc.Phase, svc.Reason)
		}
		before := tb.Failures()
		once := false
		tb.Pass(time.Second, func(pando.Instance) (float64, bool) {
			was := once
			once = true
			return 1, !was
		})
		if n := tb.Count(pando.PhaseInRotation); n != 1 || tb.Failures() != before+1 {
			t.Errorf("%d in rotation a second after one failure; %d failures", n, tb.Failures()-before)
		}
	})
}
