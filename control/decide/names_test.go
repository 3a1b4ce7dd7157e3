package decide_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide"
	"pando.run/pando/control/decide/decidetest"
	"pando.run/pando/world"
)

// few has few random endings, so that names meet.
type few struct {
	decidetest.Counting
	names int
}

func (f *few) Instance(s pando.ServiceName) pando.InstanceID {
	f.names++
	return pando.InstanceID(fmt.Sprintf("%s-%d", s, f.names/2))
}

// Two tenants may have services of one name. Their instances never share a name, neither with a
// stored one nor with one on its way.
func TestInstancesOfTwoTenantsShareNoName(t *testing.T) {
	tb, ids := decidetest.New(t), &few{}
	spec := pando.Spec{Name: "web", Command: []string{"true"},
		Scale: pando.Scale{Min: 3, Max: 3}}.WithDefaults()
	seen := map[pando.InstanceID]pando.Key{}
	for _, tenant := range []pando.Tenant{"a", "b", "c"} {
		s := pando.ServiceKey{Tenant: tenant, Name: "web"}
		tb.Put(pando.Service{ServiceKey: s, Target: 1, Latest: 1},
			pando.Revision{Service: s, Number: 1, Spec: spec})
		ids.names = 0 // the same names again
		txn, _ := decide.Decide(tb.W, s, tb.Now, ids)
		n := 0
		for _, v := range txn.Put {
			i, ok := v.(pando.Instance)
			if !ok {
				continue
			}
			if other, taken := seen[i.ID]; taken {
				t.Errorf("%s has the name of %s", i.Key(), other)
			}
			seen[i.ID] = i.Key()
			n++
		}
		if n != 3 {
			t.Errorf("%s placed %d instances, want 3", s, n)
		}
		if tenant == "b" { // the third decides while this commit is on its way
			tb.W.Reserve(txn)
			continue
		}
		tb.Put(txn.Put...)
	}
	if len(tb.W.Instances) != 6 {
		t.Errorf("%d instances are stored, want 6", len(tb.W.Instances))
	}
}

// A removed service leaves its address to itself for a while, and no other service gets it.
func TestAnAddressIsNotGivenToAnotherServiceAtOnce(t *testing.T) {
	tb := decidetest.New(t)
	now := time.Unix(1000, 0)
	address := func(name pando.ServiceName) pando.Service {
		s := pando.DefaultService(name)
		tb.Put(pando.Service{ServiceKey: s, Target: 1, Latest: 1})
		txn, _ := decide.Decide(tb.W, s, now, tb.IDs)
		tb.Rev++
		tb.W.Committed(txn, tb.Rev)
		return tb.W.Services[s].V
	}
	remove := func(name pando.ServiceName) {
		svc := tb.W.Services[pando.DefaultService(name)].V
		svc.Removing = true
		tb.Put(svc)
		now = now.Add(time.Second)
		txn, _ := decide.Decide(tb.W, svc.ServiceKey, now, tb.IDs)
		tb.Rev++
		tb.Commit(txn, tb.Rev)
	}
	first := address("one")
	remove("one")
	second := address("two")
	if second.VIP4 == first.VIP4 || second.VIP6 == first.VIP6 || !second.VIP4.IsValid() {
		t.Errorf("two has %s and %s, one had %s and %s", second.VIP4, second.VIP6, first.VIP4,
			first.VIP6)
	}
	if again := address("one"); again.VIP4 != first.VIP4 || again.VIP6 != first.VIP6 {
		t.Errorf("one came back at %s and %s, it had %s and %s", again.VIP4, again.VIP6, first.VIP4,
			first.VIP6)
	}
	remove("one")
	rest, ok := tb.W.Rests(first.VIP4)
	if !ok {
		t.Fatalf("%s does not rest", first.VIP4)
	}
	tb.W = world.New() // another leader, which reads the store
	tb.Rev = 0
	tb.Put(pando.Host{Name: "h1"}, second, rest)
	if third := address("three"); third.VIP4 == first.VIP4 || third.VIP4 == second.VIP4 {
		t.Errorf("three has %s at once", third.VIP4)
	}
	if again := address("one"); again.VIP4 != first.VIP4 {
		t.Errorf("one came back at %s, it had %s", again.VIP4, first.VIP4)
	}
	if _, rests := tb.W.Rests(first.VIP4); rests {
		t.Error("an address in use rests")
	}
}

func TestANewInstanceIsCalledAsItsAskerProposes(t *testing.T) {
	tb := decidetest.Serving(t)
	first := tb.W.Of(web)[0].ID
	for proposed, held := range map[pando.InstanceID]bool{
		"web-mine": true, first: false, "other-1": false, "web-../x": false, "": false,
	} {
		ask := pando.Intent{
			ID: pando.IntentID(tb.IDs.Sequential(tb.Now)), Service: web, Verb: pando.VerbReplicate,
			Host: "h1", Instance: proposed,
			By: pando.Asker{Kind: pando.AskerInstance, Name: string(first)},
		}.Become(pando.IntentAsked, tb.Now, "load")
		txn, _ := decide.Decide(tb.W, web, tb.Now, tb.IDs, ask)
		for _, v := range txn.Put {
			i, ok := v.(pando.Instance)
			if !ok {
				continue
			}
			if i.ID == first || (i.ID == proposed) != held {
				t.Errorf("%q was proposed, it is called %q", proposed, i.ID)
			}
			if !slices.Contains(txn.If, pando.Condition{Key: i.Key()}) {
				t.Errorf("conditions %+v do not require that the name %s is free", txn.If, i.ID)
			}
		}
	}
}

func TestAnAskThatNobodyHasWrittenIsWrittenOnceWithItsAnswer(t *testing.T) {
	tb := decidetest.Serving(t)
	ask := pando.Intent{
		ID: pando.IntentID(tb.IDs.Sequential(tb.Now)), Service: web, Verb: pando.VerbReplicate,
		Host: "h1",
		By:   pando.Asker{Kind: pando.AskerInstance, Name: string(tb.W.Of(web)[0].ID)},
	}.Become(pando.IntentAsked, tb.Now, "load")
	txn, _ := decide.Decide(tb.W, web, tb.Now, tb.IDs, ask)
	if !slices.Contains(txn.If, pando.Condition{Key: ask.Key()}) {
		t.Errorf("conditions %+v do not require that the ask is unchanged", txn.If)
	}
	tb.Rev++
	tb.Commit(txn, tb.Rev)
	if i := tb.W.Intents[ask.ID].V; i.State != pando.IntentPlaced || len(i.History) != 3 {
		t.Errorf("the ask is %s by way of %v", i.State, i.History)
	}
	if n := tb.Count(pando.PhasePlaced); n != 1 {
		t.Errorf("%d instances are placed, want 1", n)
	}
	if txn, _ := decide.Decide(tb.W, web, tb.Now, tb.IDs, ask); len(txn.Put) > 0 {
		t.Errorf("an ask that is in the store is answered again: %+v", txn.Put)
	}
}
