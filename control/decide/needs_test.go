package decide_test

import (
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide"
	"pando.run/pando/control/decide/decidetest"
	"pando.run/pando/lifecycle"
	"pando.run/pando/world"
)

// needing returns a table with a service web that waits for db.
func needing(t *testing.T, need pando.Need) *decidetest.Table {
	tb := decidetest.New(t)
	tb.Deploy(1, func(s *pando.Spec) { s.Needs = map[pando.ServiceName]pando.Need{"db": need} })
	tb.Settle()
	if n := len(tb.W.Of(web)); n != 0 {
		t.Fatalf("%d instances start before db is there", n)
	}
	return tb
}

func TestTheFirstStartWaitsForNeeds(t *testing.T) {
	starting := pando.Instance{ID: "db-1", Service: decidetest.Database, Host: "h1", Revision: 1,
		Phase: pando.PhaseStarting}
	for _, c := range []struct {
		need    pando.Need
		phase   pando.ServicePhase
		current int
		with    []pando.Stored
		starts  bool
	}{
		{pando.NeedStarted, pando.ServiceDeploying, 0, nil, false},
		{pando.NeedStarted, pando.ServiceDeploying, 0, []pando.Stored{starting}, true},
		{pando.NeedHealthy, pando.ServiceDeploying, 0, []pando.Stored{starting}, false},
		{pando.NeedHealthy, pando.ServiceDegraded, 1, nil, false},
		{pando.NeedHealthy, pando.ServiceServing, 1, nil, true},
		{pando.NeedCompleted, pando.ServiceServing, 1, nil, false},
		{pando.NeedCompleted, pando.ServiceCompleted, 1, nil, true},
	} {
		tb := needing(t, c.need)
		st := tb.W.Services[web].V
		if !strings.Contains(st.Reason, "it waits for db to be "+string(c.need)) {
			t.Errorf("%s: the reason is %q", c.need, st.Reason)
		}
		tb.Other(c.phase, c.current, c.with...)
		tb.Settle()
		if got := len(tb.W.Of(web)) > 0; got != c.starts {
			t.Errorf("%s of a service that is %s: starts %t", c.need, c.phase, got)
		}
		_, wake := decide.Decide(tb.W, web, tb.Now, tb.IDs)
		if !c.starts && !wake.After(tb.Now) {
			t.Errorf("%s: nothing looks again", c.need)
		}
	}
}

// A service that served needs nothing any more: it replaces its instances also without db.
func TestACrashWaitsForNothing(t *testing.T) {
	tb := needing(t, pando.NeedHealthy)
	tb.Other(pando.ServiceServing, 1)
	for range 2 {
		tb.Settle()
		tb.Run()
	}
	tb.Settle()
	tb.Other(pando.ServiceDegraded, 1)
	tb.Fail(tb.W.Of(web)[0], 1)
	tb.Settle()
	if n := len(tb.W.Of(web)); n != 2 {
		t.Errorf("%d instances after a crash, want 2", n)
	}
	tb.Deploy(2, func(s *pando.Spec) {
		s.Needs = map[pando.ServiceName]pando.Need{"db": pando.NeedHealthy}
	})
	tb.Settle()
	st := tb.W.Services[web].V
	for _, i := range tb.W.Of(web) {
		if i.Revision == 2 {
			t.Errorf("%s of revision 2 starts while db is degraded", i.ID)
		}
	}
	if st.Phase != pando.ServiceRolling || !strings.Contains(st.Reason, "it waits for db") {
		t.Errorf("the service is %s: %s", st.Phase, st.Reason)
	}
}

func TestAFailedNeedIsSaid(t *testing.T) {
	tb := needing(t, pando.NeedCompleted)
	tb.Other(pando.ServiceDeploying, 0, pando.Decision{ID: tb.IDs.Sequential(tb.Now),
		Service: decidetest.Database, Kind: pando.DecidedFailed, Reason: "it exited with 3", At: tb.Now,
		Inputs: map[string]float64{lifecycle.ExitCode: 3}})
	tb.Settle()
	if r := tb.W.Services[web].V.Reason; !strings.Contains(r, "it exited with 3: mend db") {
		t.Errorf("the reason is %q", r)
	}
}

func TestAServiceThatDidItsWorkIsCompleted(t *testing.T) {
	tb := decidetest.New(t)
	tb.Deploy(1, func(s *pando.Spec) {
		s.Scale, s.Restart = pando.Scale{Min: 1, Max: 1}, pando.RestartNo
	})
	tb.Settle()
	tb.Fail(tb.W.Of(web)[0], 0)
	tb.Settle()
	if s := tb.W.Services[web].V; s.Phase != pando.ServiceCompleted || s.Current != 1 {
		t.Errorf("after exit code 0 it is %s at revision %d: %s", s.Phase, s.Current, s.Reason)
	}
	if n := len(tb.W.Of(web)); n != 0 {
		t.Errorf("%d instances start again", n)
	}
	tb.Now = tb.Now.Add(time.Minute)
	tb.Deploy(2, func(s *pando.Spec) {
		s.Scale, s.Restart = pando.Scale{Min: 1, Max: 1}, pando.RestartNo
		s.Environment = map[string]string{"A": "b"}
	})
	tb.Settle()
	if n := len(tb.W.Of(web)); n != 1 {
		t.Fatalf("%d instances of a new deploy, want 1", n)
	}
	tb.Fail(tb.W.Of(web)[0], 1)
	tb.Settle()
	if s := tb.W.Services[web].V; s.Phase == pando.ServiceServing {
		t.Errorf("after exit code 1 it is %s at revision %d: %s", s.Phase, s.Current, s.Reason)
	}
}

func TestANeededServiceLeavesLast(t *testing.T) {
	tb := decidetest.Serving(t)
	tb.Other(pando.ServiceServing, 1)
	tb.Put(pando.Instance{ID: "db-1", Service: decidetest.Database, Host: "h1", Revision: 1, Weight: 100,
		Phase: pando.PhaseInRotation})
	tb.Deploy(2, func(s *pando.Spec) {
		s.Needs = map[pando.ServiceName]pando.Need{"db": pando.NeedStarted}
	})
	leave := func(k pando.ServiceKey) {
		svc := tb.W.Services[k].V
		svc.Removing = true
		tb.Put(svc)
	}
	leave(decidetest.Database)
	draining := func() bool {
		txn, _ := decide.Decide(tb.W, decidetest.Database, tb.Now, tb.IDs)
		tb.Rev++
		tb.Commit(txn, tb.Rev)
		return tb.W.Instances["db-1"].V.Phase == pando.PhaseDraining
	}
	leave(web)
	if draining() {
		t.Error("db leaves before web, which needs it and leaves too")
	}
	if r := tb.W.Services[decidetest.Database].V.Reason; !strings.Contains(r, "until web is gone") {
		t.Errorf("the reason is %q", r)
	}
	tb.Rev++
	tb.Commit(pando.Txn{Delete: []pando.Key{web.Key()}}, tb.Rev)
	if !draining() {
		t.Error("db stays though web is gone")
	}
}

func TestACycleOfNeedsIsRefused(t *testing.T) {
	tb := decidetest.New(t)
	tb.Deploy(1, func(s *pando.Spec) {
		s.Needs = map[pando.ServiceName]pando.Need{"db": pando.NeedStarted}
	})
	spec := pando.Spec{Name: "db", Needs: map[pando.ServiceName]pando.Need{"web": pando.NeedStarted}}
	if got := decide.NeedsCycle(tb.W, spec); got != "db needs web needs db" {
		t.Errorf("the cycle is %q", got)
	}
	spec.Tenant = "other" // with another web
	if got := decide.NeedsCycle(tb.W, spec); got != "" {
		t.Errorf("in another tenant: %q", got)
	}
}

// Each run of a job waits at every look of the control plane. The reason names the need.
func TestEachRunOfAJobWaitsForNeeds(t *testing.T) {
	tb := decidetest.New(t)
	job := pando.Spec{Name: "web", Kind: pando.KindJob, Command: []string{"true"},
		Needs: map[pando.ServiceName]pando.Need{"db": pando.NeedHealthy}}
	tb.Deploy(1, func(s *pando.Spec) { *s = job })
	for run := range 2 {
		tb.Other(pando.ServiceDeploying, 0)
		tb.Begins(nil)
		for range 5 {
			tb.Settle()
			tb.Work()
			tb.Now = tb.Now.Add(decide.PartLook)
		}
		st := tb.W.Services[web].V
		if n := len(world.RunsOf(tb.W, web)); n != 0 || !strings.Contains(st.Reason, "it waits for db") {
			t.Fatalf("run %d has %d instances before db is healthy: %s", run, n, st.Reason)
		}
		tb.Other(pando.ServiceServing, 1)
		tb.Settle()
		all := world.RunsOf(tb.W, web)
		if len(all) != 1 {
			t.Fatalf("run %d has %d instances, want 1", run, len(all))
		}
		tb.Work()
		tb.Ends(world.RunsOf(tb.W, web)[0], 0)
		tb.Settle()
	}
}
