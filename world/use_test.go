package world

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"pando.run/pando"
	"pando.run/pando/access"
)

// The use of a tenant is the sum over its instances after any order of changes and reservations.
func TestTheUseOfATenantIsTheSumOfItsInstances(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, rev := New(), pando.StoreRevision(0)
		keys := []pando.ServiceKey{{Tenant: "a", Name: "x"}, {Tenant: "a", Name: "y"},
			{Tenant: "b", Name: "x"}}
		limits := map[pando.ServiceKey]pando.Resources{}
		commit := func(txn pando.Txn) { rev++; w.Committed(txn, rev) }
		for n, k := range keys {
			limits[k] = pando.Resources{CPUs: float64(n+1) / 10, MemoryBytes: int64(n + 1)}
			commit(pando.Txn{Put: []pando.Stored{pando.Service{ServiceKey: k}, pando.Revision{
				Service: k, Number: 1, Spec: pando.Spec{Resources: limits[k]}}}})
		}
		there := map[pando.InstanceID]pando.Instance{}
		for range rapid.IntRange(0, 40).Draw(t, "changes") {
			id := pando.InstanceID(rapid.StringMatching("[a-e]").Draw(t, "id"))
			if i, ok := there[id]; ok {
				commit(pando.Txn{Delete: []pando.Key{i.Key()}})
				delete(there, id)
				continue
			}
			i := pando.Instance{ID: id, Service: rapid.SampledFrom(keys).Draw(t, "service"), Host: "h",
				Revision: 1}
			txn := pando.Txn{Put: []pando.Stored{i}}
			w.Reserve(txn)
			if rapid.Bool().Draw(t, "fails") {
				w.Release(txn)
				continue
			}
			commit(txn)
			w.Release(txn)
			there[id] = i
		}
		for _, tenant := range []pando.Tenant{"a", "b"} {
			var want Load
			for _, i := range there {
				if i.Service.Tenant == tenant {
					want.Instances++
					want.MemoryBytes += limits[i.Service].MemoryBytes
				}
			}
			got := w.UseOf(tenant)
			if got.Instances != want.Instances || got.MemoryBytes != want.MemoryBytes {
				t.Fatalf("tenant %s takes %+v, want %+v", tenant, got, want)
			}
		}
		if a, b := w.ServicesOf("a"), w.ServicesOf("b"); a != 2 || b != 1 {
			t.Fatalf("%d and %d services, want 2 and 1", a, b)
		}
	})
}

// Changes are counted for a second, up to the bound, and only for a tenant with such a quota.
func TestChangesOfTablesAreCountedForASecond(t *testing.T) {
	w, at := New(), time.Unix(1000, 0)
	w.Committed(pando.Txn{Put: []pando.Stored{
		access.Account{Tenant: "a", Quota: access.Quota{PublishPerSecond: 5}}}}, 1)
	change := func(t pando.Tenant) pando.Txn {
		return pando.Txn{Put: []pando.Stored{pando.Endpoints{Service: pando.Service{
			ServiceKey: pando.ServiceKey{Tenant: t, Name: "x"}}}}}
	}
	for range 2 * access.PublishPerSecondMax {
		Publish(w, change("a"), at)
		Publish(w, change("b"), at)
	}
	if n := w.Published("a", at); n != access.PublishPerSecondMax {
		t.Errorf("%d changes, want the bound", n)
	}
	if n := w.Published("b", at); n != 0 {
		t.Errorf("%d changes of a tenant without the quota", n)
	}
	if n := w.Published("a", at.Add(1100*time.Millisecond)); n != 0 {
		t.Errorf("%d changes a second later", n)
	}
}
