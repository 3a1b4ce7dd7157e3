package control

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide"
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

// pass lets time pass in steps of 100 ms, in which the hosts and control do what is due. fails
// decides whether an instance in rotation ends now, with the exit code.
func (tb *table) pass(d time.Duration, fails func(pando.Instance) (code float64, now bool)) {
	tb.t.Helper()
	for end := tb.now.Add(d); tb.now.Before(end); {
		tb.settle()
		tb.run()
		for _, i := range tb.w.Of(web) {
			if i.Phase != pando.PhaseInRotation || fails == nil {
				continue
			}
			if code, now := fails(i); now {
				tb.fail(i, code)
			}
		}
		tb.now = tb.now.Add(100 * time.Millisecond)
	}
	tb.settle()
}

func exits(code float64) func(pando.Instance) (float64, bool) {
	return func(pando.Instance) (float64, bool) { return code, true }
}

func (tb *table) failures() int { return decide.Failures(tb.w.DecisionsOf(web)) }

func TestAProgramThatRunsOnceRunsOnceUnderAnyClock(t *testing.T) {
	eachSkew(t, func(t *testing.T, skew time.Duration) {
		tb := newTable(t)
		tb.skew = skew
		tb.deploy(1, func(s *pando.Spec) { s.Scale.Min, s.Restart = 1, pando.RestartNo })
		tb.pass(25*time.Second, exits(0))
		if svc := tb.w.Services[web].V; tb.failures() != 1 || svc.Phase != pando.ServiceCompleted {
			t.Errorf("%d runs, it is %s: %s", tb.failures(), svc.Phase, svc.Reason)
		}
	})
}

func TestACrashLoopHasABrakeUnderAnyClock(t *testing.T) {
	eachSkew(t, func(t *testing.T, skew time.Duration) {
		tb := newTable(t)
		tb.skew = skew
		tb.deploy(1, func(s *pando.Spec) { s.Scale.Min = 1 })
		tb.pass(25*time.Second, exits(1))
		svc := tb.w.Services[web].V
		if n := tb.failures(); n < 8 || n > 10 || svc.Phase != pando.ServiceFailing ||
			!strings.Contains(svc.Reason, fmt.Sprintf("%d failures without a success", n)) {
			t.Errorf("%d failures, it is %s: %s", n, svc.Phase, svc.Reason)
		}
	})
}

func TestACanarySoaksUnderAnyClock(t *testing.T) {
	eachSkew(t, func(t *testing.T, skew time.Duration) {
		tb := serving(t)
		tb.skew = skew
		tb.deploy(2, func(s *pando.Spec) { s.Rollout = pando.Rollout{Canary: 0.1, SoakSeconds: 30} })
		svc := tb.w.Services[web].V
		svc.Trial = &pando.Trial{Began: tb.hostNow()} // by a server with the clock of the hosts
		tb.put(svc)
		tb.pass(29*time.Second, nil)
		if svc := tb.w.Services[web].V; !svc.Soaking() {
			t.Fatalf("after 29 s the canary does not soak: %+v", svc)
		}
		tb.pass(7*time.Second, nil)
		if svc := tb.w.Services[web].V; svc.Current != 2 {
			t.Errorf("after 36 s revision %d is current: %+v", svc.Current, svc)
		}
	})
}

func TestARolloutKeepsItsDeadlineUnderAnyClock(t *testing.T) {
	eachSkew(t, func(t *testing.T, skew time.Duration) {
		tb := serving(t)
		tb.skew = skew
		tb.deploy(2, func(s *pando.Spec) {
			s.Rollout = pando.Rollout{Canary: 0.1, SoakSeconds: 120, DeadlineSeconds: 90}
		})
		svc := tb.w.Services[web].V
		svc.Trial = &pando.Trial{Began: tb.hostNow()}
		tb.put(svc)
		tb.pass(50*time.Second, nil)
		if svc := tb.w.Services[web].V; svc.Target != 2 {
			t.Fatal("it ended after 50 s")
		}
		tb.pass(41*time.Second, nil)
		if svc := tb.w.Services[web].V; svc.Target != 1 {
			t.Error("it goes on after 91 s")
		}
	})
}

func TestHistoryIsTrimmedInTheOrderOfTheStore(t *testing.T) {
	eachSkew(t, func(t *testing.T, skew time.Duration) {
		tb := serving(t)
		const more = 40
		for n := range decide.DecisionsKept + more {
			tb.now = tb.now.Add(10 * time.Millisecond)
			at := tb.now
			if n%2 == 1 {
				at = at.Add(skew)
			}
			tb.put(pando.Decision{ID: tb.ids.Sequential(at), Service: web, Kind: pando.DecidedConflict,
				Reason: fmt.Sprint(n), At: at})
		}
		tb.settle()
		all := tb.w.DecisionsOf(web)
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
		tb := serving(t)
		tb.begins(func(r *pando.Run) {
			r.Command, r.Want, r.Attached, r.Alive = []string{"sh"}, 1, true, tb.now.Add(skew+1)
		})
		sign := func() {
			svc := tb.w.Services[web].V
			svc.Book = svc.Book.Clone()
			svc.Book.Runs[0].Alive = tb.now.Add(skew + 1)
			tb.put(svc)
		}
		for range 12 {
			tb.now = tb.now.Add(pando.RunAliveEvery)
			sign()
			tb.settle()
			tb.work()
		}
		if r := tb.newestRun(); !r.Active() {
			t.Fatalf("it ended beside its caller: %s", r.Reason)
		}
		tb.now = tb.now.Add(pando.RunAliveMax - time.Second)
		tb.settle()
		if r := tb.newestRun(); !r.Active() {
			t.Fatalf("it ended too early: %s", r.Reason)
		}
		tb.now = tb.now.Add(time.Second)
		tb.settle()
		if r := tb.newestRun(); r.Active() {
			t.Error("it lives on without its caller")
		}
	})
}

func TestARunKeepsItsDeadlineAndItsTriesUnderAnyClock(t *testing.T) {
	eachSkew(t, func(t *testing.T, skew time.Duration) {
		tb := serving(t)
		tb.skew = skew
		tb.begins(func(r *pando.Run) {
			r.Command, r.Want, r.Retries, r.Began = []string{"x"}, 1, 50, tb.hostNow()
			r.DeadlineSeconds = 90
		})
		tries := 0
		for range 800 {
			tb.settle()
			tb.work()
			for _, i := range world.RunsOf(tb.w, web) {
				if i.Phase == pando.PhaseStarting {
					tb.ends(i, 1)
					tries++
				}
			}
			tb.now = tb.now.Add(100 * time.Millisecond)
		}
		if r := tb.newestRun(); tries < 8 || tries > 12 || !r.Active() {
			t.Fatalf("%d tries in 80 s: %s", tries, r.Reason)
		}
		tb.now = tb.now.Add(11 * time.Second)
		tb.settle()
		if r := tb.newestRun(); r.State != pando.RunFailed || !strings.Contains(r.Reason, "deadline") {
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
			tb := newTable(t)
			tb.skew = skew
			i := pando.Instance{ID: "web-1", Service: web, Host: "h1", Phase: pando.PhaseInRotation,
				Since: tb.hostNow(), Born: tb.now.Add(-time.Hour)}
			tb.put(i)
			tb.now = tb.now.Add(seen)
			p, verb := &scale.Policy{}, pando.Verb("")
			for range 5 {
				sample := scale.Sample{At: tb.now, Total: map[pando.InstanceID]float64{"web-1": 10_000}}
				verb = max(verb, p.Step(rule, decide.WithLocalTimes(tb.w, tb.w.Of(web)), sample).Verb)
				tb.now = tb.now.Add(200 * time.Millisecond)
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
		tb := newTable(t)
		tb.skew = skew
		tb.deploy(1, func(s *pando.Spec) { s.Scale.Min = 1 })
		tb.pass(25*time.Second, exits(1))
		before := tb.failures()
		tb.reload()
		tb.pass(5*time.Second, exits(1))
		if n := tb.failures(); n > before+1 {
			t.Errorf("%d failures before the start of the server, %d within 5 s after it", before, n)
		}

		tb = serving(t)
		tb.skew = skew
		tb.deploy(2, func(s *pando.Spec) { s.Rollout = pando.Rollout{Canary: 0.1, SoakSeconds: 30} })
		svc := tb.w.Services[web].V
		svc.Trial = &pando.Trial{Began: tb.now}
		tb.put(svc)
		tb.pass(5*time.Second, nil)
		tb.reload()
		tb.pass(28*time.Second, nil)
		if svc := tb.w.Services[web].V; svc.Current != 1 || !svc.Soaking() {
			t.Errorf("the canary passed early: %+v", svc)
		}
	})
}

// reload replaces the world by one that has just read the store.
func (tb *table) reload() {
	tb.t.Helper()
	var all []pando.Record
	add := func(v pando.Stored, modified pando.StoreRevision) {
		b, err := world.Encode(v)
		if err != nil {
			tb.t.Fatal(err)
		}
		all = append(all, pando.Record{Key: v.Key(), Value: b, Created: tb.w.CreatedOf(v.Key()),
			Modified: modified})
	}
	for _, v := range tb.w.Services {
		add(v.V, v.Modified)
	}
	for _, m := range tb.w.Revisions {
		for _, v := range m {
			add(v.V, v.Modified)
		}
	}
	for _, v := range tb.w.Instances {
		add(v.V, v.Modified)
	}
	for _, v := range tb.w.Intents {
		add(v.V, v.Modified)
	}
	for _, v := range tb.w.Decisions {
		add(v.V, v.Modified)
	}
	for _, v := range tb.w.Hosts {
		add(v.V, v.Modified)
	}
	for _, v := range tb.w.Endpoints {
		add(v.V, v.Modified)
	}
	tb.w = world.New()
	tb.w.At(tb.now)
	if err := tb.w.Apply(all, tb.rev); err != nil {
		tb.t.Fatal(err)
	}
}

// An instance that serves for long enough ends the back-off, and the next failure of the service
// does not bring it back.
func TestASuccessEndsTheBackOff(t *testing.T) {
	eachSkew(t, func(t *testing.T, skew time.Duration) {
		tb := newTable(t)
		tb.skew = skew
		tb.deploy(1, func(s *pando.Spec) { s.Scale.Min = 1 })
		tb.pass(20*time.Second, exits(1))
		tb.pass(2*lifecycle.Healed, nil)
		if svc := tb.w.Services[web].V; svc.Phase != pando.ServiceServing {
			t.Fatalf("it is %s: %s", svc.Phase, svc.Reason)
		}
		before := tb.failures()
		once := false
		tb.pass(time.Second, func(pando.Instance) (float64, bool) {
			was := once
			once = true
			return 1, !was
		})
		if n := tb.count(pando.PhaseInRotation); n != 1 || tb.failures() != before+1 {
			t.Errorf("%d in rotation a second after one failure; %d failures", n, tb.failures()-before)
		}
	})
}
