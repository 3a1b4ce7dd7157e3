package decide_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide"
	"pando.run/pando/control/decide/decidetest"
	"pando.run/pando/world"
)

// many returns a world in which this many instances of web are in rotation, and this many asks
// wait.
func many(instances, asks int, change func(*pando.Spec, *pando.Service)) (*world.World, *decidetest.Counting) {
	w, ids := world.New(), &decidetest.Counting{}
	spec := pando.Spec{Name: "web", Command: []string{"web"}}
	spec.Scale = pando.Scale{Min: instances, Max: 5000}
	svc := pando.Service{
		ServiceKey: web, VIP4: pando.VIPs4.Addr(), VIP6: pando.VIPs6.Addr(), Home: "h1",
		Current: 1, Target: 1, Latest: 1,
	}
	change(&spec, &svc)
	records := []pando.Stored{pando.Host{Name: "h1"}, svc}
	for n := range svc.Latest {
		spec.Command = []string{"web", fmt.Sprint(n)}
		records = append(records, pando.Revision{Service: web, Number: n + 1, Spec: spec.WithDefaults()})
	}
	for n := range instances {
		records = append(records, pando.Instance{
			ID: pando.InstanceID(fmt.Sprint("web-x", n)), Service: web, Host: "h1", Revision: 1,
			Phase: pando.PhaseInRotation, Since: t0, Born: t0.Add(time.Duration(n)),
		})
	}
	for n := range asks {
		ask := pando.Intent{
			ID: pando.IntentID(ids.Sequential(t0)), Service: web, Verb: pando.VerbReplicate,
			By: pando.Asker{Kind: pando.AskerInstance, Name: "web-x0"},
		}
		records = append(records, ask.Become(pando.IntentAsked, t0.Add(time.Duration(n)), "load"))
	}
	w.Committed(pando.Txn{Put: records}, 1)
	return w, ids
}

// bytesOf returns the memory that one decision takes, and the records that it writes.
func bytesOf(w *world.World, ids *decidetest.Counting) (bytes uint64, puts int) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	txn, _ := decide.Decide(w, web, t0, ids)
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc, len(txn.Put)
}

// A decision looks at all instances once. It does not look at all of them once per move: a hundred
// moves beside 3,000 instances cost a hundred moves beside 100, and one look at the others.
func TestOneMoveOfADecisionDoesNotCopyTheWholeService(t *testing.T) {
	same := func(*pando.Spec, *pando.Service) {}
	for name, c := range map[string]struct {
		asks   int
		change func(*pando.Spec, *pando.Service)
	}{
		"asks":   {100, same},
		"drains": {0, func(_ *pando.Spec, v *pando.Service) { v.Pin = &pando.Pin{} }},
		"starts": {0, func(s *pando.Spec, _ *pando.Service) { s.Scale.Min = 4000 }},
		"a rollout": {0, func(s *pando.Spec, v *pando.Service) {
			s.Rollout.Surge, v.Target, v.Latest = 100, 2, 2
		}},
		"a removal": {0, func(_ *pando.Spec, v *pando.Service) { v.Removing = true }},
	} {
		const small, large = 100, 3000
		few, puts := bytesOf(many(small, c.asks, c.change))
		all, more := bytesOf(many(large, c.asks, c.change))
		look, _ := bytesOf(many(large, 0, same))
		if puts < decide.OperationsMax || more < decide.OperationsMax {
			t.Errorf("%s: %d and %d records are written, want full decisions", name, puts, more)
		}
		// Lists of the instances are made a few times: to read, to change and to order them.
		if most := few + 6*look; all > most {
			t.Errorf("%s: %d KiB beside %d instances, %d beside %d; want at most %d", name,
				few>>10, small, all>>10, large, most>>10)
		}

	}
}

// An ask adds a few records to the lists of its service. The lists have room for them, so an ask
// copies neither the 300 intents of the history nor the 500 instances once more.
func TestAnAskCopiesNoListOfItsService(t *testing.T) {
	const instances, history, most = 500, decide.IntentsKept, 64 << 10
	cost := func(asks int) uint64 {
		w, ids := many(instances, 0, func(*pando.Spec, *pando.Service) {})
		var put []pando.Stored
		for n := range history {
			at := t0.Add(-time.Hour + time.Duration(n))
			put = append(put, pando.Intent{
				ID: pando.IntentID(ids.Sequential(at)), Service: web, Verb: pando.VerbReplicate,
			}.Become(pando.IntentAsked, at, "load").Become(pando.IntentRefused, at, "at max"))
		}
		w.Committed(pando.Txn{Put: put}, 2)
		var waiting []pando.Intent
		for range asks {
			waiting = append(waiting, pando.Intent{
				ID: pando.IntentID(ids.Sequential(t0)), Service: web, Verb: pando.VerbReplicate,
				By: pando.Asker{Kind: pando.AskerOperator},
			}.Become(pando.IntentAsked, t0, "load"))
		}
		least := ^uint64(0)
		for range 3 { // other goroutines may allocate meanwhile
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			txn, _ := decide.Decide(w, web, t0, ids, waiting...)
			runtime.ReadMemStats(&after)
			if want := 2 * asks; len(txn.Put) < want {
				t.Fatalf("%d records for %d asks, want at least %d", len(txn.Put), asks, want)
			}
			least = min(least, after.TotalAlloc-before.TotalAlloc)
		}
		return least
	}
	if none, some := cost(0), cost(4); some > none+most {
		t.Errorf("a decision takes %d KiB, with 4 asks %d KiB: at most %d more", none>>10, some>>10,
			most>>10)
	} else {
		t.Logf("a decision takes %d KiB, with 4 asks %d KiB", none>>10, some>>10)
	}
}
