package decide_test

import (
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide"
	"pando.run/pando/control/decide/decidetest"
	"pando.run/pando/world"
)

// A run beside a service changes nothing about it: neither its count, its rollout nor its table.
func TestARunIsBesideItsService(t *testing.T) {
	tb := decidetest.Serving(t)
	tb.Begins(func(r *pando.Run) { r.Command, r.Want = []string{"migrate"}, 1 })
	tb.Settle()
	tb.Work()
	tb.Settle()
	parts := world.RunsOf(tb.W, web)
	if len(parts) != 1 || parts[0].Run.Command[0] != "migrate" || !parts[0].Run.Beside ||
		parts[0].Host != "h1" {
		t.Fatalf("%+v", parts)
	}
	if svc := tb.W.Services[web].V; tb.Count(pando.PhaseInRotation) != 2 || len(tb.W.Of(web)) != 2 ||
		svc.Phase != pando.ServiceServing {
		t.Errorf("the service is %s with %d instances", svc.Phase, len(tb.W.Of(web)))
	}
	e := tb.W.Endpoints[web].V
	if len(e.Seats) != 3 || e.Seats[2].Phase.TakesFlows() || e.Service.Book != nil {
		t.Errorf("%+v", e)
	}
	tb.Deploy(2, nil) // a rollout goes its way
	for range 100 {
		tb.Settle()
		tb.Run()
		tb.Now = tb.Now.Add(100 * time.Millisecond)
	}
	svc := tb.W.Services[web].V
	if svc.Current != 2 || len(world.RunsOf(tb.W, web)) != 1 || !tb.NewestRun().Active() {
		t.Errorf("revision %d, %d of the run", svc.Current, len(world.RunsOf(tb.W, web)))
	}
	tb.Ends(parts[0], 0)
	tb.Settle()
	decisions := tb.W.DecisionsOf(web)
	if n, p := decide.Failures(decisions), decide.Problem(svc, decisions); n != 0 || p != nil {
		t.Errorf("a run that succeeded counts as %d failures, with the problem %+v", n, p)
	}
	if r := tb.NewestRun(); r.State != pando.RunSucceeded || len(world.RunsOf(tb.W, web)) != 0 {
		t.Errorf("%+v", r)
	}
}

// A job fills a run, tries failed instances again within its retries, and is removed as a whole.
func TestAJobDecidesByItsRuns(t *testing.T) {
	tb := decidetest.New(t)
	tb.Deploy(1, func(s *pando.Spec) {
		*s = pando.Spec{Name: "web", Kind: pando.KindJob, Command: []string{"true"},
			Job: pando.Job{Parallel: 3, Retries: 1}}
	})
	tb.Begins(nil)
	tb.Settle()
	tb.Work()
	tb.Settle()
	all := world.RunsOf(tb.W, web)
	if svc := tb.W.Services[web].V; len(all) != 3 || svc.Phase != pando.ServiceRunning ||
		svc.Current != 1 {
		t.Fatalf("%d instances, %s (%s)", len(all), svc.Phase, svc.Reason)
	}
	tb.Ends(all[0], 1)
	tb.Settle()
	if n := len(world.RunsOf(tb.W, web)); n != 2 {
		t.Errorf("%d run right after a failure, want 2: the third waits", n)
	}
	tb.Now = tb.Now.Add(time.Second)
	tb.Settle()
	tb.Work()
	if n := len(world.RunsOf(tb.W, web)); n != 3 {
		t.Errorf("%d run a second after a failure, want 3", n)
	}
	for _, i := range world.RunsOf(tb.W, web) {
		tb.Ends(i, 0)
	}
	tb.Settle()
	if svc := tb.W.Services[web].V; svc.Phase != pando.ServiceCompleted || tb.NewestRun().Failed != 1 {
		t.Errorf("%s (%s)", svc.Phase, svc.Reason)
	}
	tb.Begins(nil)
	tb.Settle()
	svc := tb.W.Services[web].V
	svc.Removing = true
	tb.Put(svc)
	for range 5 {
		tb.Settle()
		tb.Work()
	}
	if _, there := tb.W.Services[web]; there || len(world.RunsOf(tb.W, web)) > 0 {
		t.Errorf("the job is not removed: %d are left", len(world.RunsOf(tb.W, web)))
	}
}

// A run for which no host has room says so where its caller looks, and forgets it once it has a host.
func TestARunWithoutAHostSaysWhy(t *testing.T) {
	tb := decidetest.New(t)
	tb.Deploy(1, func(s *pando.Spec) {
		*s = pando.Spec{Name: "web", Kind: pando.KindJob, Command: []string{"true"},
			Resources: pando.Resources{MemoryBytes: 1 << 50}}
	})
	h := tb.W.Hosts["h1"].V
	h.Memory = 1 << 30
	tb.Put(h)
	tb.Begins(nil)
	tb.Settle()
	svc := tb.W.Services[web].V
	if r := tb.NewestRun(); !r.Active() || !strings.Contains(r.Reason, "1125899906842624 bytes") ||
		!strings.Contains(svc.Reason, r.Reason) || len(world.RunsOf(tb.W, web)) != 0 {
		t.Errorf("%q, %+v", svc.Reason, r)
	}
	h.Memory = 1 << 51
	tb.Put(h)
	tb.Now = tb.Now.Add(decide.PartLook)
	tb.Settle()
	if r := tb.NewestRun(); r.Reason != "" || len(world.RunsOf(tb.W, web)) != 1 {
		t.Errorf("%+v", r)
	}
}

// A job wakes for its schedule, also without any change.
func TestAScheduledJobWakes(t *testing.T) {
	tb := decidetest.New(t)
	tb.Deploy(1, func(s *pando.Spec) {
		*s = pando.Spec{Name: "web", Kind: pando.KindJob, Command: []string{"true"},
			Job: pando.Job{Schedule: "*/5 * * * *"}}
	})
	tb.Settle()
	_, wake := decide.Decide(tb.W, web, tb.Now, tb.IDs)
	if want := time.Date(2026, 1, 2, 3, 5, 0, 0, time.UTC); !wake.Equal(want) {
		t.Fatalf("it wakes at %s, want %s", wake, want)
	}
	tb.Now = wake
	tb.Settle()
	if r := tb.NewestRun(); r.Number != 1 || !r.Due.Equal(wake) || len(world.RunsOf(tb.W, web)) != 1 {
		t.Errorf("%+v", r)
	}
	tb.Now = tb.Now.Add(5 * time.Minute) // forbid
	tb.Settle()
	if b := tb.W.Services[web].V.Book; b.Last != 1 || b.Missed != 1 {
		t.Errorf("%+v", b)
	}
}

// A run in progress keeps its ends when history is trimmed, and the book is bounded.
func TestTheBookOfRunsIsBounded(t *testing.T) {
	tb := decidetest.New(t)
	tb.Deploy(1, func(s *pando.Spec) {
		*s = pando.Spec{Name: "web", Kind: pando.KindJob, Command: []string{"true"},
			Job: pando.Job{Parallel: 2}}
	})
	tb.Begins(nil)
	tb.Settle()
	tb.Ends(world.RunsOf(tb.W, web)[0], 0)
	for range 2 * decide.DecisionsKept {
		tb.Put(pando.Decision{ID: tb.IDs.Sequential(tb.Now), Service: web, Kind: pando.DecidedExec})
	}
	for range 20 {
		tb.Settle()
	}
	if n := len(tb.W.DecisionsOf(web)); n > decide.DecisionsKept+10 || tb.NewestRun().Done != 1 ||
		len(world.RunsOf(tb.W, web)) != 1 {
		t.Errorf("%d decisions, %+v", n, tb.NewestRun())
	}
	for range 2 * pando.RunsKept {
		for _, i := range world.RunsOf(tb.W, web) {
			tb.Ends(i, 0)
		}
		tb.Settle()
		tb.Begins(nil)
		tb.Settle()
	}
	if n := len(tb.W.Services[web].V.Book.Runs); n != pando.RunsKept+1 {
		t.Errorf("the book has %d runs", n)
	}
}

// A caller that is killed leaves no service of its run, and no volume.
func TestControlRemovesTheServiceOfOneRun(t *testing.T) {
	tb := decidetest.New(t)
	tb.Deploy(1, func(s *pando.Spec) {
		once, err := s.Once(s.Name)
		if err != nil {
			t.Fatal(err)
		}
		*s = once
	})
	svc := tb.W.Services[web].V
	svc.Asked = tb.Now
	tb.Put(svc)
	tb.Settle()
	tb.Begins(nil)
	tb.Settle()
	tb.Work()
	tb.Now = tb.Now.Add(10 * time.Minute)
	tb.Settle()
	parts := world.RunsOf(tb.W, web)
	if len(parts) != 1 {
		t.Fatalf("%d instances run after ten minutes", len(parts))
	}
	tb.Ends(parts[0], 0)
	tb.Settle()
	txn, next := decide.Decide(tb.W, web, tb.Now, tb.IDs)
	if _, there := tb.W.Services[web]; !there || len(txn.Put) > 0 || next.Before(tb.Now) {
		t.Fatalf("the caller had no time to remove it; next look at %v", next)
	}
	tb.Now = next
	tb.Settle()
	if _, there := tb.W.Services[web]; there {
		t.Error("the service of one run is left")
	}
}
