package control

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide"
	"pando.run/pando/lifecycle"
	"pando.run/pando/world"
)

// work makes every placed instance of a run start, and every draining one go, as an agent would.
func (tb *table) work() {
	for _, i := range world.RunsOf(tb.w, web) {
		switch i.Phase {
		case pando.PhasePlaced:
			i.Phase, i.Since = pando.PhaseStarting, tb.hostNow()
			tb.put(i)
		case pando.PhaseDraining:
			tb.gone(i)
		}
	}
}

func (tb *table) gone(i pando.Instance) {
	tb.rev++
	tb.commit(pando.Txn{Delete: []pando.Key{i.Key()}}, tb.rev)
}

// ends ends an instance of a run by itself.
func (tb *table) ends(i pando.Instance, code float64) {
	tb.put(pando.Decision{
		ID: tb.ids.Sequential(tb.hostNow()), Service: web, Instance: i.ID,
		Kind: lifecycle.OfEnd(&pando.Exit{Code: int(code)}, true, ""),
		At:   tb.hostNow(), Reason: fmt.Sprintf("it exited with %g", code),
		Inputs: map[string]float64{lifecycle.ExitCode: code, lifecycle.Run: float64(i.Run.Number)},
	})
	tb.gone(i)
}

// begins adds a run to the book of web.
func (tb *table) begins(change func(*pando.Run)) {
	svc := tb.w.Services[web].V
	spec, _ := tb.w.SpecOf(web, svc.Target)
	r := lifecycle.NewRun(spec, svc.Target, tb.now)
	if change != nil {
		change(&r)
	}
	svc.Book = svc.Book.With(r)
	tb.put(svc)
}

func (tb *table) newestRun() pando.Run {
	r, _ := tb.w.Services[web].V.Book.Newest()
	return r
}

// A run beside a service changes nothing about it: neither its count, its rollout nor its table.
func TestARunIsBesideItsService(t *testing.T) {
	tb := serving(t)
	tb.begins(func(r *pando.Run) { r.Command, r.Want = []string{"migrate"}, 1 })
	tb.settle()
	tb.work()
	tb.settle()
	parts := world.RunsOf(tb.w, web)
	if len(parts) != 1 || parts[0].Run.Command[0] != "migrate" || !parts[0].Run.Beside ||
		parts[0].Host != "h1" {
		t.Fatalf("%+v", parts)
	}
	if svc := tb.w.Services[web].V; tb.count(pando.PhaseInRotation) != 2 || len(tb.w.Of(web)) != 2 ||
		svc.Phase != pando.ServiceServing {
		t.Errorf("the service is %s with %d instances", svc.Phase, len(tb.w.Of(web)))
	}
	e := tb.w.Endpoints[web].V
	if len(e.Seats) != 3 || e.Seats[2].Phase.TakesFlows() || e.Service.Book != nil {
		t.Errorf("%+v", e)
	}
	tb.deploy(2, nil) // a rollout goes its way
	for range 100 {
		tb.settle()
		tb.run()
		tb.now = tb.now.Add(100 * time.Millisecond)
	}
	svc := tb.w.Services[web].V
	if svc.Current != 2 || len(world.RunsOf(tb.w, web)) != 1 || !tb.newestRun().Active() {
		t.Errorf("revision %d, %d of the run", svc.Current, len(world.RunsOf(tb.w, web)))
	}
	tb.ends(parts[0], 0)
	tb.settle()
	decisions := tb.w.DecisionsOf(web)
	if n, p := decide.Failures(decisions), decide.Problem(svc, decisions); n != 0 || p != nil {
		t.Errorf("a run that succeeded counts as %d failures, with the problem %+v", n, p)
	}
	if r := tb.newestRun(); r.State != pando.RunSucceeded || len(world.RunsOf(tb.w, web)) != 0 {
		t.Errorf("%+v", r)
	}
}

// A job fills a run, tries failed instances again within its retries, and is removed as a whole.
func TestAJobDecidesByItsRuns(t *testing.T) {
	tb := newTable(t)
	tb.deploy(1, func(s *pando.Spec) {
		*s = pando.Spec{Name: "web", Kind: pando.KindJob, Command: []string{"true"},
			Job: pando.Job{Parallel: 3, Retries: 1}}
	})
	tb.begins(nil)
	tb.settle()
	tb.work()
	tb.settle()
	all := world.RunsOf(tb.w, web)
	if svc := tb.w.Services[web].V; len(all) != 3 || svc.Phase != pando.ServiceRunning ||
		svc.Current != 1 {
		t.Fatalf("%d instances, %s (%s)", len(all), svc.Phase, svc.Reason)
	}
	tb.ends(all[0], 1)
	tb.settle()
	if n := len(world.RunsOf(tb.w, web)); n != 2 {
		t.Errorf("%d run right after a failure, want 2: the third waits", n)
	}
	tb.now = tb.now.Add(time.Second)
	tb.settle()
	tb.work()
	if n := len(world.RunsOf(tb.w, web)); n != 3 {
		t.Errorf("%d run a second after a failure, want 3", n)
	}
	for _, i := range world.RunsOf(tb.w, web) {
		tb.ends(i, 0)
	}
	tb.settle()
	if svc := tb.w.Services[web].V; svc.Phase != pando.ServiceCompleted || tb.newestRun().Failed != 1 {
		t.Errorf("%s (%s)", svc.Phase, svc.Reason)
	}
	tb.begins(nil)
	tb.settle()
	svc := tb.w.Services[web].V
	svc.Removing = true
	tb.put(svc)
	for range 5 {
		tb.settle()
		tb.work()
	}
	if _, there := tb.w.Services[web]; there || len(world.RunsOf(tb.w, web)) > 0 {
		t.Errorf("the job is not removed: %d are left", len(world.RunsOf(tb.w, web)))
	}
}

// A job wakes for its schedule, also without any change.
func TestAScheduledJobWakes(t *testing.T) {
	tb := newTable(t)
	tb.deploy(1, func(s *pando.Spec) {
		*s = pando.Spec{Name: "web", Kind: pando.KindJob, Command: []string{"true"},
			Job: pando.Job{Schedule: "*/5 * * * *"}}
	})
	tb.settle()
	_, wake := decide.Decide(tb.w, web, tb.now, tb.ids)
	if want := time.Date(2026, 1, 2, 3, 5, 0, 0, time.UTC); !wake.Equal(want) {
		t.Fatalf("it wakes at %s, want %s", wake, want)
	}
	tb.now = wake
	tb.settle()
	if r := tb.newestRun(); r.Number != 1 || !r.Due.Equal(wake) || len(world.RunsOf(tb.w, web)) != 1 {
		t.Errorf("%+v", r)
	}
	tb.now = tb.now.Add(5 * time.Minute) // forbid
	tb.settle()
	if b := tb.w.Services[web].V.Book; b.Last != 1 || b.Missed != 1 {
		t.Errorf("%+v", b)
	}
}

// A run in progress keeps its ends when history is trimmed, and the book is bounded.
func TestTheBookOfRunsIsBounded(t *testing.T) {
	tb := newTable(t)
	tb.deploy(1, func(s *pando.Spec) {
		*s = pando.Spec{Name: "web", Kind: pando.KindJob, Command: []string{"true"},
			Job: pando.Job{Parallel: 2}}
	})
	tb.begins(nil)
	tb.settle()
	tb.ends(world.RunsOf(tb.w, web)[0], 0)
	for range 2 * decide.DecisionsKept {
		tb.put(pando.Decision{ID: tb.ids.Sequential(tb.now), Service: web, Kind: pando.DecidedExec})
	}
	for range 20 {
		tb.settle()
	}
	if n := len(tb.w.DecisionsOf(web)); n > decide.DecisionsKept+10 || tb.newestRun().Done != 1 ||
		len(world.RunsOf(tb.w, web)) != 1 {
		t.Errorf("%d decisions, %+v", n, tb.newestRun())
	}
	for range 2 * pando.RunsKept {
		for _, i := range world.RunsOf(tb.w, web) {
			tb.ends(i, 0)
		}
		tb.settle()
		tb.begins(nil)
		tb.settle()
	}
	if n := len(tb.w.Services[web].V.Book.Runs); n != pando.RunsKept+1 {
		t.Errorf("the book has %d runs", n)
	}
}

// A refused request for a run has its reason.
func TestARunIsRefusedWithItsReason(t *testing.T) {
	lead(t, time.Millisecond, func(t *testing.T, l leadership) {
		_, err := l.StartRun(t.Context(), web, pando.RunAsk{}, anna)
		if !errors.Is(err, pando.ErrRefused) || !strings.Contains(err.Error(), "run web -- COMMAND") {
			t.Errorf("without a command: %v", err)
		}
		ask := pando.RunAsk{Command: []string{"true"}}
		if _, err = l.StartRun(t.Context(), web, ask, anna); !errors.Is(err, pando.ErrUnsupported) {
			t.Errorf("an older host: %v", err)
		}
		if _, err = l.EndRun(t.Context(), web, 3, anna); !errors.Is(err, pando.ErrNotFound) {
			t.Errorf("no such run: %v", err)
		}
		if _, err := l.registry.Commit(t.Context(), pando.Txn{Put: []pando.Stored{
			pando.Host{Name: "h1", Runs: true}}}); err != nil {
			t.Fatal(err)
		}
		l.pass(t, time.Second)
		for n := 1; n <= pando.RunsMax; n++ {
			if r, err := l.StartRun(t.Context(), web, ask, anna); err != nil || r.Number != n {
				t.Fatalf("%+v: %v", r, err)
			}
		}
		if _, err = l.StartRun(t.Context(), web, ask, anna); !errors.Is(err, pando.ErrRefused) {
			t.Errorf("one too many: %v", err)
		}
		r, err := l.EndRun(t.Context(), web, 2, anna)
		if err != nil || r.State != pando.RunEnded || !strings.Contains(r.Reason, "anna") {
			t.Errorf("%+v: %v", r, err)
		}
		if _, err = l.EndRun(t.Context(), web, 2, anna); !errors.Is(err, pando.ErrRefused) {
			t.Errorf("twice: %v", err)
		}
	})
}

// A caller that is killed leaves no service of its run, and no volume.
func TestControlRemovesTheServiceOfOneRun(t *testing.T) {
	tb := newTable(t)
	tb.deploy(1, func(s *pando.Spec) {
		once, err := s.Once(s.Name)
		if err != nil {
			t.Fatal(err)
		}
		*s = once
	})
	svc := tb.w.Services[web].V
	svc.Asked = tb.now
	tb.put(svc)
	tb.settle()
	tb.begins(nil)
	tb.settle()
	tb.work()
	tb.now = tb.now.Add(10 * time.Minute)
	tb.settle()
	parts := world.RunsOf(tb.w, web)
	if len(parts) != 1 {
		t.Fatalf("%d instances run after ten minutes", len(parts))
	}
	tb.ends(parts[0], 0)
	tb.settle()
	txn, next := decide.Decide(tb.w, web, tb.now, tb.ids)
	if _, there := tb.w.Services[web]; !there || len(txn.Put) > 0 || next.Before(tb.now) {
		t.Fatalf("the caller had no time to remove it; next look at %v", next)
	}
	tb.now = next
	tb.settle()
	if _, there := tb.w.Services[web]; there {
		t.Error("the service of one run is left")
	}
}
