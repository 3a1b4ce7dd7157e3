package decide_test

import (
	"fmt"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide"
	"pando.run/pando/control/decide/decidetest"
)

// large returns a table with this many instances of web in rotation.
func large(t *testing.T, n int) *decidetest.Table {
	tb := decidetest.New(t)
	tb.Deploy(1, func(s *pando.Spec) { s.Scale = pando.Scale{Min: n, Max: 1024} })
	tb.Settle()
	tb.Run()
	tb.Settle()
	if got := tb.Count(pando.PhaseInRotation); got != n {
		t.Fatalf("%d in rotation, want %d", got, n)
	}
	return tb
}

func TestALargeServiceGrowsShrinksAndGoesInParts(t *testing.T) {
	const many = 600
	tb := large(t, 1)
	tb.Pin(&pando.Pin{Instances: many, Until: tb.Now.Add(time.Minute), Before: 1})
	tb.Settle()
	if n := tb.Count(pando.PhasePlaced); n != many-1 {
		t.Fatalf("%d are placed for a pin of %d", n, many)
	}
	tb.Run()
	tb.Settle()
	tb.Now = tb.Now.Add(time.Minute) // the instances that the pin added drain
	tb.Settle()
	if n := tb.Count(pando.PhaseInRotation); n != 1 || tb.W.Services[web].V.Pin != nil {
		t.Fatalf("%d in rotation after the pin, which is there: %t", n, tb.W.Services[web].V.Pin != nil)
	}
	tb.Run()
	tb.Settle()
	tb.Pin(&pando.Pin{Instances: many})
	tb.Settle()
	tb.Run()
	tb.Settle()
	tb.Pin(&pando.Pin{Instances: 1}) // drains all but one
	tb.Settle()
	if n := tb.Count(pando.PhaseDraining); n != many-1 {
		t.Fatalf("%d leave for a pin of 1", n)
	}
	tb.Run()
	tb.Pin(&pando.Pin{Instances: many})
	tb.Settle()
	tb.Run()
	tb.Remove()
	if n := len(tb.W.Services) + len(tb.W.Instances) + len(tb.W.Intents) + len(tb.W.Decisions) +
		len(tb.W.Revisions); n != 0 {
		t.Errorf("%d records are left of the removed service", n)
	}
}

func TestALargeServiceLeavesAHostAndComesHomeInParts(t *testing.T) {
	const many = 600
	tb := large(t, many)
	tb.Put(pando.Host{Name: "h1", Leaving: true}, pando.Host{Name: "h2"})
	tb.Settle()
	n, m := tb.On("h1", pando.PhaseDraining), tb.On("h2", pando.PhasePlaced)
	if n != many || m != many {
		t.Fatalf("%d leave h1, %d are placed on h2; want %d", n, m, many)
	}
	tb.Run()
	tb.Settle()
	tb.Put(pando.Host{Name: "h1"})
	tb.Lose("h2")
	tb.Settle()
	tb.Run()
	tb.Put(pando.Host{Name: "h2"})
	tb.Settle()
	if n, m := tb.On("h2", pando.PhaseDraining), tb.On("h1", pando.PhaseInRotation); n != many ||
		m != many {
		t.Fatalf("%d leave h2, which was away, %d serve on h1; want %d", n, m, many)
	}
	tb.Lose("h2")
	tb.Remove()
	if n := len(tb.W.Services) + len(tb.W.Instances); n != 0 {
		t.Errorf("%d records are left", n)
	}
}

func TestManyAsksAreAnsweredInParts(t *testing.T) {
	tb := large(t, 1)
	const many = 500
	for n := range many {
		tb.Now = tb.Now.Add(time.Second)
		tb.Ask(pando.VerbReplicate, pando.InstanceID(fmt.Sprint("web-", n)))
	}
	tb.Settle()
	for _, i := range tb.W.IntentsOf(web) {
		if i.State == pando.IntentAsked {
			t.Fatalf("intent %s waits for an answer", i.ID)
		}
	}
}

func TestAServiceDeployedFiveHundredTimesKeepsItsNewestRevisionsAndCanBeRemoved(t *testing.T) {
	tb := decidetest.Serving(t)
	for n := range 500 { // as an earlier build left them
		tb.Put(pando.Revision{Service: web, Number: 2 + n, State: pando.RevisionRetired},
			pando.Decision{
				ID: tb.IDs.Sequential(tb.Now), Service: web, Kind: pando.DecidedNothing, At: tb.Now,
			})
	}
	tb.Settle()
	if n := len(tb.W.Revisions[web]); n > decide.RevisionsKept+1 {
		t.Errorf("%d revisions are kept, want %d and the one in use", n, decide.RevisionsKept)
	}
	if _, ok := tb.W.SpecOf(web, 1); !ok {
		t.Error("the revision by which instances run is forgotten")
	}
	for n := range 700 { // more than one commit takes
		tb.Put(pando.Revision{Service: web, Number: 1000 + n})
	}
	tb.Remove()
	n := len(tb.W.Services) + len(tb.W.Revisions) + len(tb.W.Intents) + len(tb.W.Decisions)
	if n != 0 {
		t.Errorf("%d records are left of the removed service", n)
	}
}

// The cost of a placement depends on the service and its home, not on the size of the cluster.
func TestAPlacementDoesNotLookAtEveryInstanceOfTheCluster(t *testing.T) {
	const others = 20_000
	alone, beside := decidetest.Serving(t), decidetest.Serving(t)
	beside.Put(pando.Host{Name: "h2"})
	for n := range others {
		beside.Put(pando.Instance{
			ID: pando.InstanceID(fmt.Sprint("db-", n)), Service: pando.DefaultService("db"), Host: "h2",
			Phase: pando.PhaseInRotation, Born: t0.Add(time.Duration(n)),
		})
	}
	best := map[*decidetest.Table]time.Duration{alone: time.Hour, beside: time.Hour}
	for tb := range best {
		tb.Pin(&pando.Pin{Instances: 60})
	}
	for range 10 { // in turns, so that a busy machine slows both
		for tb, b := range best {
			begun := time.Now()
			txn, _ := decide.Decide(tb.W, web, tb.Now, tb.IDs)
			best[tb] = min(b, time.Since(begun))
			if len(txn.Put) < 2*58 {
				t.Fatalf("%d records for 58 instances", len(txn.Put))
			}
		}
	}
	// A look at each of the others would cost a hundred times as much.
	if best[beside] > 5*best[alone]+5*time.Millisecond {
		t.Errorf("placing 58 instances took %s, and %s beside %d others", best[alone], best[beside],
			others)
	}
}

func TestAnAskThatIsHeardTwiceIsAnsweredOnce(t *testing.T) {
	tb := decidetest.Serving(t)
	ask := pando.Intent{
		ID: pando.IntentID(tb.IDs.Sequential(tb.Now)), Service: web, Verb: pando.VerbReplicate,
		Host: "h1",
		By:   pando.Asker{Kind: pando.AskerOperator},
	}.Become(pando.IntentAsked, tb.Now, "load")
	txn, _ := decide.Decide(tb.W, web, tb.Now, tb.IDs, ask, ask)
	placed := 0
	for _, v := range txn.Put {
		if _, ok := v.(pando.Instance); ok {
			placed++
		}
	}
	if placed != 1 {
		t.Errorf("%d instances are placed for one ask, want 1", placed)
	}
}
