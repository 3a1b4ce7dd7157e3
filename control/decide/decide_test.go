package decide_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide"
	"pando.run/pando/control/decide/decidetest"
	"pando.run/pando/driver/sim"
	"pando.run/pando/world"
)

func TestANewServiceGetsAddressesAndItsMinimum(t *testing.T) {
	tb := decidetest.New(t)
	tb.Deploy(1, nil)
	tb.Settle()
	svc := tb.W.Services[web].V
	if !svc.VIP4.IsValid() || !pando.VIPs4.Contains(svc.VIP4) || !pando.VIPs6.Contains(svc.VIP6) ||
		svc.VIP4 == pando.Gateway4 {
		t.Errorf("VIPs %s, %s", svc.VIP4, svc.VIP6)
	}
	if n := tb.Count(pando.PhasePlaced); n != 2 || svc.Phase != pando.ServiceDeploying {
		t.Errorf("%d placed, %s; want 2, deploying", n, svc.Phase)
	}
	tb.Run()
	tb.Settle()
	if svc := tb.W.Services[web].V; svc.Phase != pando.ServiceServing || svc.Current != 1 {
		t.Errorf("%s at revision %d, want serving at 1", svc.Phase, svc.Current)
	}
}

// A ready instance whose table is not yet in force gets no flow. A deploy that waits must not say
// that the service serves.
func TestAReadyInstanceDoesNotServeBeforeItsTable(t *testing.T) {
	tb := decidetest.New(t)
	tb.Deploy(1, nil)
	tb.Settle()
	for _, i := range tb.W.Of(web) {
		tb.Put(i.Become(pando.PhaseStarting, tb.Now, "runs").Become(pando.PhaseReady, tb.Now, "answers"))
	}
	tb.Settle()
	if svc := tb.W.Services[web].V; svc.Phase != pando.ServiceDeploying || svc.Current != 0 {
		t.Errorf("%s at revision %d, want deploying: %s", svc.Phase, svc.Current, svc.Reason)
	}
	for _, i := range tb.W.Of(web) {
		tb.Put(i.Become(pando.PhaseInRotation, tb.Now, "steered to"))
	}
	tb.Settle()
	if svc := tb.W.Services[web].V; svc.Phase != pando.ServiceServing || svc.Current != 1 {
		t.Errorf("%s at revision %d, want serving at 1: %s", svc.Phase, svc.Current, svc.Reason)
	}
}

func TestAsksAreAnsweredWithinTheBudget(t *testing.T) {
	tb := decidetest.Serving(t)
	first := tb.W.Of(web)[0].ID
	second := tb.W.Of(web)[1].ID
	a, b := tb.Ask(pando.VerbReplicate, first), tb.Ask(pando.VerbReplicate, second)
	tb.Settle()
	if s := tb.W.Intents[a].V.State; s != pando.IntentPlaced {
		t.Errorf("the first ask is %s, want placed", s)
	}
	i := tb.W.Intents[b].V
	if i.State != pando.IntentCoalesced || i.Instance != tb.W.Intents[a].V.Instance {
		t.Errorf("the ask of the same moment is %s with %s", i.State, i.Instance)
	}
	tb.Now = tb.Now.Add(time.Second)
	c := tb.Ask(pando.VerbReplicate, first)
	tb.Settle()
	tb.Now = tb.Now.Add(time.Second)
	d := tb.Ask(pando.VerbReplicate, first)
	tb.Settle()
	if s := tb.W.Intents[c].V.State; s != pando.IntentPlaced {
		t.Errorf("the third ask is %s, want placed (4 of 4)", s)
	}
	if i := tb.W.Intents[d].V; i.State != pando.IntentRefused || !strings.Contains(i.Reason, "max 4") {
		t.Errorf("the fifth instance is %s: %s", i.State, i.Reason)
	}
}

func TestAWarmInstanceIsClaimedBeforeANewOneIsMade(t *testing.T) {
	tb := decidetest.New(t)
	tb.Deploy(1, func(s *pando.Spec) { s.Scale = pando.Scale{Min: 1, Max: 4, Warm: 1} })
	tb.Settle()
	tb.Run()
	tb.Settle()
	if n := tb.Count(pando.PhaseWarm); n != 1 {
		t.Fatalf("%d warm, want 1", n)
	}
	ask := tb.Ask(pando.VerbReplicate, tb.W.Of(web)[0].ID)
	tb.Settle()
	i := tb.W.Instances[tb.W.Intents[ask].V.Instance].V
	if i.Warm || i.Phase != pando.PhasePlaced || !strings.Contains(i.Reason, "warm") {
		t.Errorf("placed %+v, want the warm one", i)
	}
	tb.Run()
	tb.Settle()
	tb.Run()
	if n := tb.Count(pando.PhaseWarm); n != 1 {
		t.Errorf("the reserve is not filled again: %d warm", n)
	}
}

func TestAPinHoldsAndEnds(t *testing.T) {
	tb := decidetest.Serving(t)
	svc := tb.W.Services[web].V
	svc.Pin = &pando.Pin{Instances: 3, Until: tb.Now.Add(time.Minute),
		By: pando.Asker{Kind: pando.AskerOperator}, Before: 2}
	tb.Put(svc)
	tb.Settle()
	tb.Run()
	tb.Settle()
	if n := tb.Count(pando.PhaseInRotation); n != 3 {
		t.Errorf("%d in rotation, pinned 3", n)
	}
	_, wake := decide.Decide(tb.W, web, tb.Now, tb.IDs)
	if !wake.Equal(svc.Pin.Until) {
		t.Errorf("looks again at %s, the pin ends at %s", wake, svc.Pin.Until)
	}
	tb.Now = wake
	tb.Settle()
	if tb.W.Services[web].V.Pin != nil {
		t.Errorf("the pin is still there")
	}
	if n := tb.Count(pando.PhaseInRotation); n != 2 {
		t.Errorf("%d in rotation after the pin, before it there were 2", n)
	}
	svc = tb.W.Services[web].V
	svc.Pin = &pando.Pin{Instances: 1}
	tb.Put(svc)
	tb.Settle()
	tb.Run()
	if n := tb.Count(pando.PhaseInRotation); n != 1 {
		t.Errorf("%d in rotation, pinned 1", n)
	}
}

func TestARolloutReplacesOneByOneAndAFailureRollsBack(t *testing.T) {
	tb := decidetest.Serving(t)
	tb.Deploy(2, func(s *pando.Spec) { s.Command = []string{"false"} })
	for range 20 {
		tb.Settle()
		if n := tb.Count(pando.PhaseInRotation); n < 2 {
			t.Fatalf("%d in rotation during the rollout", n)
		}
		tb.Run()
		tb.Now = tb.Now.Add(time.Second)
	}
	if svc := tb.W.Services[web].V; svc.Current != 2 || svc.Phase != pando.ServiceServing {
		t.Fatalf("revision %d, %s; want 2, serving", svc.Current, svc.Phase)
	}
	tb.Deploy(3, nil)
	tb.Crash(3, 3)
	svc := tb.W.Services[web].V
	if svc.Target != 2 || tb.W.Revisions[web][3].V.State != pando.RevisionFailed {
		t.Errorf("target %d, revision 3 is %s; want 2, failed",
			svc.Target, tb.W.Revisions[web][3].V.State)
	}
	if n := tb.Count(pando.PhaseInRotation); n != 2 {
		t.Errorf("%d in rotation after the rollback", n)
	}
}

func TestARollbackTakesOutWhatTheSameDecisionPlacesOnlyAfterwards(t *testing.T) {
	tb := decidetest.Serving(t)
	tb.Deploy(2, nil)
	tb.Crash(2, 2)
	tb.Settle()
	for _, i := range tb.W.Of(web) {
		if i.Revision == 2 {
			tb.Fail(i, 1)
		}
	}
	tb.Now = tb.Now.Add(time.Second)
	ask := tb.Ask(pando.VerbReplicate, tb.W.Of(web)[0].ID)
	txn, _ := decide.Decide(tb.W, web, tb.Now, tb.IDs)
	placed := 0
	for _, v := range txn.Put {
		if i, ok := v.(pando.Instance); ok && i.Intent == ask {
			if placed++; i.Phase != pando.PhasePlaced {
				t.Errorf("%s is born %s", i.ID, i.Phase)
			}
		}
	}
	if placed != 1 {
		t.Fatalf("%d instances are placed for the ask, want 1", placed)
	}
	tb.Rev++
	tb.Commit(txn, tb.Rev)
	tb.Settle()
	if i := tb.W.Intents[ask].V.Instance; tb.W.Instances[i].V.Phase != pando.PhaseDraining {
		t.Errorf("an instance of the revision that failed is %s", tb.W.Instances[i].V.Phase)
	}
}

func TestARemovedServiceLeavesNoRecord(t *testing.T) {
	tb := decidetest.Serving(t)
	svc := tb.W.Services[web].V
	svc.Removing = true
	tb.Put(svc, pando.StateHead{Service: web})
	tb.Settle()
	tb.Run()
	tb.Settle()
	if len(tb.W.Services)+len(tb.W.Instances)+len(tb.W.Intents)+len(tb.W.Decisions)+
		len(tb.W.Revisions) != 0 {
		t.Errorf("left: %d services, %d instances, %d intents, %d decisions",
			len(tb.W.Services), len(tb.W.Instances), len(tb.W.Intents), len(tb.W.Decisions))
	}
	if len(tb.W.Heads) != 1 {
		t.Errorf("its state is gone without a purge")
	}
}

// A service with `min: 0` serves without an instance. A pin starts some, and they leave with it.
func TestAServiceMayHaveNoInstance(t *testing.T) {
	tb := decidetest.New(t)
	tb.Deploy(1, func(s *pando.Spec) { s.Scale = pando.Scale{Zero: true, Max: 4} })
	tb.Settle()
	if svc := tb.W.Services[web].V; svc.Phase != pando.ServiceServing || len(tb.W.Of(web)) != 0 {
		t.Fatalf("it is %s (%s) with %d instances", svc.Phase, svc.Reason, len(tb.W.Of(web)))
	}
	svc := tb.W.Services[web].V
	svc.Pin = &pando.Pin{Instances: 2, Until: tb.Now.Add(time.Minute)}
	tb.Put(svc)
	tb.Settle()
	tb.Run()
	tb.Settle()
	if n := tb.Count(pando.PhaseInRotation); n != 2 {
		t.Fatalf("%d instances are in rotation, the pin is 2", n)
	}
	tb.Now = tb.Now.Add(2 * time.Minute)
	tb.Settle()
	if n := tb.Count(pando.PhaseDraining); n != 2 || tb.W.Services[web].V.Pin != nil {
		t.Errorf("%d instances drain after the pin, want 2", n)
	}
}

// Decide panics on no world that the store can hold: phases, states and references are drawn at
// random.
func TestDecidePanicsOnNoWorld(t *testing.T) {
	phases := []pando.Phase{pando.PhasePlaced, pando.PhaseStarting, pando.PhaseWarm, pando.PhaseReady,
		pando.PhaseInRotation, pando.PhaseDraining, pando.PhaseDrained, pando.PhaseFailed,
		pando.PhaseMerged}
	states := []pando.IntentState{pando.IntentAsked, pando.IntentGranted, pando.IntentPlaced,
		pando.IntentStarting, pando.IntentReady, pando.IntentInRotation, pando.IntentDraining,
		pando.IntentMerged, pando.IntentDead, pando.IntentFailed, pando.IntentRefused,
		pando.IntentCoalesced, ""}
	verbs := []pando.Verb{pando.VerbReplicate, pando.VerbHalt, pando.VerbDie}
	for seed := range uint64(3000) {
		d := rand.New(rand.NewPCG(seed, 7))
		w, now := world.New(), time.Unix(1e9, 0)
		name := func(n int) pando.InstanceID { return pando.InstanceID(fmt.Sprint("web-", d.IntN(n))) }
		host := func() pando.HostName { return pando.HostName(fmt.Sprint("h", d.IntN(4))) }
		ago := func() time.Time { return now.Add(-time.Duration(d.IntN(90)) * time.Second) }
		t1 := pando.Txn{Put: []pando.Stored{pando.Service{ServiceKey: web, Current: d.IntN(3),
			Target: d.IntN(3), Latest: 2, Removing: d.IntN(5) == 0, Rolling: d.IntN(4), Home: host(),
			Phase: pando.ServiceServing}}}
		for n := 1; n < 3; n++ {
			spec := pando.Spec{Name: "web", Command: []string{"web"},
				Scale: pando.Scale{Min: d.IntN(3), Max: 1 + d.IntN(4), Warm: d.IntN(2)}}
			t1.Put = append(t1.Put,
				pando.Revision{Service: web, Number: n, Spec: spec.WithDefaults()})
		}
		for range d.IntN(3) {
			t1.Put = append(t1.Put, pando.Host{Name: host(), CPUs: 2, Leaving: d.IntN(4) == 0})
		}
		for range d.IntN(7) {
			t1.Put = append(t1.Put, pando.Instance{ID: name(9), Service: web, Host: host(),
				Revision: d.IntN(4), Weight: 100, Warm: d.IntN(5) == 0, Phase: phases[d.IntN(len(phases))],
				Born: ago(), Since: ago()})
		}
		for n := range d.IntN(6) {
			t1.Put = append(t1.Put, pando.Intent{ID: pando.IntentID(fmt.Sprint(n)), Service: web,
				Verb: verbs[d.IntN(3)], Host: host(), Instance: name(9), State: states[d.IntN(len(states))],
				By:      pando.Asker{Kind: pando.AskerInstance, Name: string(name(9))},
				History: []pando.Transition{{At: ago()}}})
		}
		w.Committed(t1, 1)
		for step := range 4 {
			func() {
				defer func() {
					if why := recover(); why != nil {
						t.Fatalf("seed %d, step %d: %v", seed, step, why)
					}
				}()
				txn, _ := decide.Decide(w, web, now, &sim.IDs{})
				w.Committed(txn, pando.StoreRevision(step+2))
			}()
			now = now.Add(time.Duration(d.IntN(20)) * time.Second)
		}
	}
}
