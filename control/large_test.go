package control

import (
	"fmt"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide"
)

// large returns a table with this many instances of web in rotation.
func large(t *testing.T, n int) *table {
	tb := newTable(t)
	tb.deploy(1, func(s *pando.Spec) { s.Scale = pando.Scale{Min: n, Max: 1024} })
	tb.settle()
	tb.run()
	tb.settle()
	if got := tb.count(pando.PhaseInRotation); got != n {
		t.Fatalf("%d in rotation, want %d", got, n)
	}
	return tb
}

func (tb *table) pin(p *pando.Pin) {
	svc := tb.w.Services[web].V
	svc.Pin = p
	tb.put(svc)
}

func TestALargeServiceGrowsShrinksAndGoesInParts(t *testing.T) {
	const many = 600
	tb := large(t, 1)
	tb.pin(&pando.Pin{Instances: many, Until: tb.now.Add(time.Minute), Before: 1})
	tb.settle()
	if n := tb.count(pando.PhasePlaced); n != many-1 {
		t.Fatalf("%d are placed for a pin of %d", n, many)
	}
	tb.run()
	tb.settle()
	tb.now = tb.now.Add(time.Minute) // the instances that the pin added drain
	tb.settle()
	if n := tb.count(pando.PhaseInRotation); n != 1 || tb.w.Services[web].V.Pin != nil {
		t.Fatalf("%d in rotation after the pin, which is there: %t", n, tb.w.Services[web].V.Pin != nil)
	}
	tb.run()
	tb.settle()
	tb.pin(&pando.Pin{Instances: many})
	tb.settle()
	tb.run()
	tb.settle()
	tb.pin(&pando.Pin{Instances: 1}) // drains all but one
	tb.settle()
	if n := tb.count(pando.PhaseDraining); n != many-1 {
		t.Fatalf("%d leave for a pin of 1", n)
	}
	tb.run()
	tb.pin(&pando.Pin{Instances: many})
	tb.settle()
	tb.run()
	svc := tb.w.Services[web].V
	svc.Removing = true
	tb.put(svc)
	tb.settle()
	tb.run()
	tb.settle()
	if n := len(tb.w.Services) + len(tb.w.Instances) + len(tb.w.Intents) + len(tb.w.Decisions) +
		len(tb.w.Revisions); n != 0 {
		t.Errorf("%d records are left of the removed service", n)
	}
}

func TestALargeServiceLeavesAHostAndComesHomeInParts(t *testing.T) {
	const many = 600
	tb := large(t, many)
	tb.put(pando.Host{Name: "h1", Leaving: true}, pando.Host{Name: "h2"})
	tb.settle()
	n, m := tb.on("h1", pando.PhaseDraining), tb.on("h2", pando.PhasePlaced)
	if n != many || m != many {
		t.Fatalf("%d leave h1, %d are placed on h2; want %d", n, m, many)
	}
	tb.run()
	tb.settle()
	tb.put(pando.Host{Name: "h1"})
	tb.lose("h2")
	tb.settle()
	tb.run()
	tb.put(pando.Host{Name: "h2"})
	tb.settle()
	if n, m := tb.on("h2", pando.PhaseDraining), tb.on("h1", pando.PhaseInRotation); n != many ||
		m != many {
		t.Fatalf("%d leave h2, which was away, %d serve on h1; want %d", n, m, many)
	}
	tb.lose("h2")
	svc := tb.w.Services[web].V
	svc.Removing = true
	tb.put(svc)
	tb.settle()
	tb.run()
	tb.settle()
	if n := len(tb.w.Services) + len(tb.w.Instances); n != 0 {
		t.Errorf("%d records are left", n)
	}
}

func TestManyAsksAreAnsweredInParts(t *testing.T) {
	tb := large(t, 1)
	const many = 500
	for n := range many {
		tb.now = tb.now.Add(time.Second)
		tb.ask(pando.VerbReplicate, pando.InstanceID(fmt.Sprint("web-", n)))
	}
	tb.settle()
	for _, i := range tb.w.IntentsOf(web) {
		if i.State == pando.IntentAsked {
			t.Fatalf("intent %s waits for an answer", i.ID)
		}
	}
}

func TestAServiceDeployedFiveHundredTimesKeepsItsNewestRevisionsAndCanBeRemoved(t *testing.T) {
	tb := serving(t)
	for n := range 500 { // as an earlier build left them
		tb.put(pando.Revision{Service: web, Number: 2 + n, State: pando.RevisionRetired},
			pando.Decision{
				ID: tb.ids.Sequential(tb.now), Service: web, Kind: pando.DecidedNothing, At: tb.now,
			})
	}
	tb.settle()
	if n := len(tb.w.Revisions[web]); n > decide.RevisionsKept+1 {
		t.Errorf("%d revisions are kept, want %d and the one in use", n, decide.RevisionsKept)
	}
	if _, ok := tb.w.SpecOf(web, 1); !ok {
		t.Error("the revision by which instances run is forgotten")
	}
	for n := range 700 { // more than one commit takes
		tb.put(pando.Revision{Service: web, Number: 1000 + n})
	}
	svc := tb.w.Services[web].V
	svc.Removing = true
	tb.put(svc)
	tb.settle()
	tb.run()
	tb.settle()
	n := len(tb.w.Services) + len(tb.w.Revisions) + len(tb.w.Intents) + len(tb.w.Decisions)
	if n != 0 {
		t.Errorf("%d records are left of the removed service", n)
	}
}

// The cost of a placement depends on the service and its home, not on the size of the cluster.
func TestAPlacementDoesNotLookAtEveryInstanceOfTheCluster(t *testing.T) {
	const others = 20_000
	alone, beside := serving(t), serving(t)
	beside.put(pando.Host{Name: "h2"})
	for n := range others {
		beside.put(pando.Instance{
			ID: pando.InstanceID(fmt.Sprint("db-", n)), Service: pando.DefaultService("db"), Host: "h2",
			Phase: pando.PhaseInRotation, Born: t0.Add(time.Duration(n)),
		})
	}
	best := map[*table]time.Duration{alone: time.Hour, beside: time.Hour}
	for tb := range best {
		tb.pin(&pando.Pin{Instances: 60})
	}
	for range 10 { // in turns, so that a busy machine slows both
		for tb, b := range best {
			begun := time.Now()
			txn, _ := decide.Decide(tb.w, web, tb.now, tb.ids)
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
	tb := serving(t)
	ask := pando.Intent{
		ID: pando.IntentID(tb.ids.Sequential(tb.now)), Service: web, Verb: pando.VerbReplicate,
		Host: "h1",
		By:   pando.Asker{Kind: pando.AskerOperator},
	}.Become(pando.IntentAsked, tb.now, "load")
	txn, _ := decide.Decide(tb.w, web, tb.now, tb.ids, ask, ask)
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
