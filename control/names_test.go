package control

import (
	"fmt"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide"
	"pando.run/pando/world"
)

// few has few random endings, so that names meet.
type few struct {
	counting
	names int
}

func (f *few) Instance(s pando.ServiceName) pando.InstanceID {
	f.names++
	return pando.InstanceID(fmt.Sprintf("%s-%d", s, f.names/2))
}

// Two tenants may have services of one name. Their instances never share a name, neither with a
// stored one nor with one on its way.
func TestInstancesOfTwoTenantsShareNoName(t *testing.T) {
	tb, ids := newTable(t), &few{}
	spec := pando.Spec{Name: "web", Command: []string{"true"},
		Scale: pando.Scale{Min: 3, Max: 3}}.WithDefaults()
	seen := map[pando.InstanceID]pando.Key{}
	for _, tenant := range []pando.Tenant{"a", "b", "c"} {
		s := pando.ServiceKey{Tenant: tenant, Name: "web"}
		tb.put(pando.Service{ServiceKey: s, Target: 1, Latest: 1},
			pando.Revision{Service: s, Number: 1, Spec: spec})
		ids.names = 0 // the same names again
		txn, _ := decide.Decide(tb.w, s, tb.now, ids)
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
			tb.w.Reserve(txn)
			continue
		}
		tb.put(txn.Put...)
	}
	if len(tb.w.Instances) != 6 {
		t.Errorf("%d instances are stored, want 6", len(tb.w.Instances))
	}
}

// A removed service leaves its address to itself for a while, and no other service gets it.
func TestAnAddressIsNotGivenToAnotherServiceAtOnce(t *testing.T) {
	tb := newTable(t)
	now := time.Unix(1000, 0)
	address := func(name pando.ServiceName) pando.Service {
		s := pando.DefaultService(name)
		tb.put(pando.Service{ServiceKey: s, Target: 1, Latest: 1})
		txn, _ := decide.Decide(tb.w, s, now, tb.ids)
		tb.rev++
		tb.w.Committed(txn, tb.rev)
		return tb.w.Services[s].V
	}
	remove := func(name pando.ServiceName) {
		svc := tb.w.Services[pando.DefaultService(name)].V
		svc.Removing = true
		tb.put(svc)
		now = now.Add(time.Second)
		txn, _ := decide.Decide(tb.w, svc.ServiceKey, now, tb.ids)
		tb.rev++
		tb.commit(txn, tb.rev)
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
	rest, ok := tb.w.Rests(first.VIP4)
	if !ok {
		t.Fatalf("%s does not rest", first.VIP4)
	}
	tb.w = world.New() // another leader, which reads the store
	tb.rev = 0
	tb.put(pando.Host{Name: "h1"}, second, rest)
	if third := address("three"); third.VIP4 == first.VIP4 || third.VIP4 == second.VIP4 {
		t.Errorf("three has %s at once", third.VIP4)
	}
	if again := address("one"); again.VIP4 != first.VIP4 {
		t.Errorf("one came back at %s, it had %s", again.VIP4, first.VIP4)
	}
	if _, rests := tb.w.Rests(first.VIP4); rests {
		t.Error("an address in use rests")
	}
}
