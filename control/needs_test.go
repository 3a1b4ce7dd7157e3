package control

import (
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide"
	"pando.run/pando/lifecycle"
	"pando.run/pando/world"
)

var database = pando.DefaultService("db")

// needing returns a table with a service web that waits for db.
func needing(t *testing.T, need pando.Need) *table {
	tb := newTable(t)
	tb.deploy(1, func(s *pando.Spec) { s.Needs = map[pando.ServiceName]pando.Need{"db": need} })
	tb.settle()
	if n := len(tb.w.Of(web)); n != 0 {
		t.Fatalf("%d instances start before db is there", n)
	}
	return tb
}

// other writes the records of db in a phase.
func (tb *table) other(phase pando.ServicePhase, current int, with ...pando.Stored) {
	spec := pando.Spec{Name: "db", Command: []string{"x"}, Restart: pando.RestartNo}
	tb.put(append(with, pando.Service{ServiceKey: database, Current: current, Target: 1, Latest: 1,
		Phase: phase, Reason: "a reason"},
		pando.Revision{Service: database, Number: 1, Spec: spec.WithDefaults()})...)
}

func TestTheFirstStartWaitsForNeeds(t *testing.T) {
	starting := pando.Instance{ID: "db-1", Service: database, Host: "h1", Revision: 1,
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
		st := tb.w.Services[web].V
		if !strings.Contains(st.Reason, "it waits for db to be "+string(c.need)) {
			t.Errorf("%s: the reason is %q", c.need, st.Reason)
		}
		tb.other(c.phase, c.current, c.with...)
		tb.settle()
		if got := len(tb.w.Of(web)) > 0; got != c.starts {
			t.Errorf("%s of a service that is %s: starts %t", c.need, c.phase, got)
		}
		_, wake := decide.Decide(tb.w, web, tb.now, tb.ids)
		if !c.starts && !wake.After(tb.now) {
			t.Errorf("%s: nothing looks again", c.need)
		}
	}
}

// A service that served needs nothing any more: it replaces its instances also without db.
func TestACrashWaitsForNothing(t *testing.T) {
	tb := needing(t, pando.NeedHealthy)
	tb.other(pando.ServiceServing, 1)
	for range 2 {
		tb.settle()
		tb.run()
	}
	tb.settle()
	tb.other(pando.ServiceDegraded, 1)
	tb.fail(tb.w.Of(web)[0], 1)
	tb.settle()
	if n := len(tb.w.Of(web)); n != 2 {
		t.Errorf("%d instances after a crash, want 2", n)
	}
	tb.deploy(2, func(s *pando.Spec) {
		s.Needs = map[pando.ServiceName]pando.Need{"db": pando.NeedHealthy}
	})
	tb.settle()
	st := tb.w.Services[web].V
	for _, i := range tb.w.Of(web) {
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
	tb.other(pando.ServiceDeploying, 0, pando.Decision{ID: tb.ids.Sequential(tb.now),
		Service: database, Kind: pando.DecidedFailed, Reason: "it exited with 3", At: tb.now,
		Inputs: map[string]float64{lifecycle.ExitCode: 3}})
	tb.settle()
	if r := tb.w.Services[web].V.Reason; !strings.Contains(r, "it exited with 3: mend db") {
		t.Errorf("the reason is %q", r)
	}
}

func TestAServiceThatDidItsWorkIsCompleted(t *testing.T) {
	tb := newTable(t)
	tb.deploy(1, func(s *pando.Spec) {
		s.Scale, s.Restart = pando.Scale{Min: 1, Max: 1}, pando.RestartNo
	})
	tb.settle()
	tb.fail(tb.w.Of(web)[0], 0)
	tb.settle()
	if s := tb.w.Services[web].V; s.Phase != pando.ServiceCompleted || s.Current != 1 {
		t.Errorf("after exit code 0 it is %s at revision %d: %s", s.Phase, s.Current, s.Reason)
	}
	if n := len(tb.w.Of(web)); n != 0 {
		t.Errorf("%d instances start again", n)
	}
	tb.now = tb.now.Add(time.Minute)
	tb.deploy(2, func(s *pando.Spec) {
		s.Scale, s.Restart = pando.Scale{Min: 1, Max: 1}, pando.RestartNo
		s.Environment = map[string]string{"A": "b"}
	})
	tb.settle()
	if n := len(tb.w.Of(web)); n != 1 {
		t.Fatalf("%d instances of a new deploy, want 1", n)
	}
	tb.fail(tb.w.Of(web)[0], 1)
	tb.settle()
	if s := tb.w.Services[web].V; s.Phase == pando.ServiceServing {
		t.Errorf("after exit code 1 it is %s at revision %d: %s", s.Phase, s.Current, s.Reason)
	}
}

func TestANeededServiceLeavesLast(t *testing.T) {
	tb := serving(t)
	tb.other(pando.ServiceServing, 1)
	tb.put(pando.Instance{ID: "db-1", Service: database, Host: "h1", Revision: 1, Weight: 100,
		Phase: pando.PhaseInRotation})
	tb.deploy(2, func(s *pando.Spec) {
		s.Needs = map[pando.ServiceName]pando.Need{"db": pando.NeedStarted}
	})
	leave := func(k pando.ServiceKey) {
		svc := tb.w.Services[k].V
		svc.Removing = true
		tb.put(svc)
	}
	leave(database)
	draining := func() bool {
		txn, _ := decide.Decide(tb.w, database, tb.now, tb.ids)
		tb.rev++
		tb.commit(txn, tb.rev)
		return tb.w.Instances["db-1"].V.Phase == pando.PhaseDraining
	}
	leave(web)
	if draining() {
		t.Error("db leaves before web, which needs it and leaves too")
	}
	if r := tb.w.Services[database].V.Reason; !strings.Contains(r, "until web is gone") {
		t.Errorf("the reason is %q", r)
	}
	tb.rev++
	tb.commit(pando.Txn{Delete: []pando.Key{web.Key()}}, tb.rev)
	if !draining() {
		t.Error("db stays though web is gone")
	}
}

func TestACycleOfNeedsIsRefused(t *testing.T) {
	tb := newTable(t)
	tb.deploy(1, func(s *pando.Spec) {
		s.Needs = map[pando.ServiceName]pando.Need{"db": pando.NeedStarted}
	})
	spec := pando.Spec{Name: "db", Needs: map[pando.ServiceName]pando.Need{"web": pando.NeedStarted}}
	if got := decide.NeedsCycle(tb.w, spec); got != "db needs web needs db" {
		t.Errorf("the cycle is %q", got)
	}
	spec.Tenant = "other" // with another web
	if got := decide.NeedsCycle(tb.w, spec); got != "" {
		t.Errorf("in another tenant: %q", got)
	}
}

// Each run of a job waits at every look of the control plane. The reason names the need.
func TestEachRunOfAJobWaitsForNeeds(t *testing.T) {
	tb := newTable(t)
	job := pando.Spec{Name: "web", Kind: pando.KindJob, Command: []string{"true"},
		Needs: map[pando.ServiceName]pando.Need{"db": pando.NeedHealthy}}
	tb.deploy(1, func(s *pando.Spec) { *s = job })
	for run := range 2 {
		tb.other(pando.ServiceDeploying, 0)
		tb.begins(nil)
		for range 5 {
			tb.settle()
			tb.work()
			tb.now = tb.now.Add(decide.PartLook)
		}
		st := tb.w.Services[web].V
		if n := len(world.RunsOf(tb.w, web)); n != 0 || !strings.Contains(st.Reason, "it waits for db") {
			t.Fatalf("run %d has %d instances before db is healthy: %s", run, n, st.Reason)
		}
		tb.other(pando.ServiceServing, 1)
		tb.settle()
		all := world.RunsOf(tb.w, web)
		if len(all) != 1 {
			t.Fatalf("run %d has %d instances, want 1", run, len(all))
		}
		tb.work()
		tb.ends(world.RunsOf(tb.w, web)[0], 0)
		tb.settle()
	}
}
