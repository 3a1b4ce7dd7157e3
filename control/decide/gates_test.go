package decide_test

import (
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide/decidetest"
)

// canaried returns a table with the canary of a new revision in rotation.
func canaried(t *testing.T) *decidetest.Table {
	tb := decidetest.Serving(t)
	tb.Deploy(2, func(s *pando.Spec) {
		s.Rollout = pando.Rollout{Canary: 0.1, SoakSeconds: 20, DeadlineSeconds: 60,
			Gate: pando.Gate{Metric: "errors"}}
	})
	svc := tb.W.Services[web].V
	svc.Trial = &pando.Trial{Began: tb.Now}
	tb.Put(svc)
	tb.Settle()
	tb.Run()
	tb.Settle()
	svc = tb.W.Services[web].V
	if n := tb.Count(pando.PhaseInRotation); n != 3 || !svc.Soaking() || svc.Trial.Share != 0.1 ||
		tb.W.Endpoints[web].V.Service.Trial.Share != 0.1 {
		t.Fatalf("%d in rotation, trial %+v; want two old ones and a canary with 0.1", n, svc.Trial)
	}
	return tb
}

// An ask during the soak starts an instance of the revision that serves. After the soak the rest of
// the rollout follows, and whole shares return.
func TestACanaryThatSoakedTakesOver(t *testing.T) {
	tb := canaried(t)
	tb.Ask(pando.VerbReplicate, tb.W.Of(web)[0].ID)
	tb.Settle()
	of := map[int]int{}
	for _, i := range tb.W.Of(web) {
		of[i.Revision]++
	}
	if of[1] != 3 || of[2] != 1 {
		t.Errorf("after an ask during the soak there are %v, want 3 of revision 1 and a canary", of)
	}
	tb.Run()
	tb.Finds(pando.Compared{New: 0.1})
	if svc := tb.W.Services[web].V; !svc.Soaking() {
		t.Fatal("the canary passed before it soaked")
	}
	for range 60 {
		tb.Now = tb.Now.Add(time.Second)
		tb.Run()
		tb.Settle()
		if svc := tb.W.Services[web].V; svc.Trial != nil && svc.Trial.Soaked && svc.Soaking() {
			t.Fatalf("a share is in force after the soak: %+v", svc.Trial)
		}
	}
	if svc := tb.W.Services[web].V; svc.Current != 2 || svc.Trial != nil {
		t.Errorf("revision %d serves, trial %+v", svc.Current, svc.Trial)
	}
}

// A worse canary and a missed deadline give everything back to the old revision, with the reason in
// the history.
func TestAFailedGateGivesEverythingBack(t *testing.T) {
	old := 0.01
	for want, fail := range map[string]func(*decidetest.Table){
		"errors is 0.05 in revision 2 and 0.01 in revision 1, and the gate allows 1.5 times": func(
			tb *decidetest.Table) {
			tb.Finds(pando.Compared{New: 0.05, Old: &old, Over: true, Worse: true})
		},
		"within its deadline of 1m": func(tb *decidetest.Table) {
			tb.Now = tb.Now.Add(time.Minute)
			tb.Settle()
		},
	} {
		tb := canaried(t)
		fail(tb)
		svc := tb.W.Services[web].V
		if svc.Target != 1 || svc.Soaking() || tb.Count(pando.PhaseInRotation) != 2 {
			t.Errorf("target %d, trial %+v, %d in rotation", svc.Target, svc.Trial,
				tb.Count(pando.PhaseInRotation))
		}
		r := tb.W.Revisions[web][2].V
		if r.State != pando.RevisionFailed || !strings.Contains(r.Reason, want) {
			t.Errorf("revision 2 is %s: %q, want %q", r.State, r.Reason, want)
		}
	}
}
