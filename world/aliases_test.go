package world

import (
	"testing"

	"pando.run/pando"
)

// A further name leads to its service while the service has it. Of two services with one name, the
// first has it, and the other one inherits it.
func TestAliasesFollowTheirServices(t *testing.T) {
	w := NewScoped()
	at := pando.StoreRevision(0)
	put := func(tenant pando.Tenant, name pando.ServiceName, names ...string) {
		at++
		w.Committed(pando.Txn{Put: []pando.Stored{pando.Endpoints{Aliases: names,
			Service: pando.Service{ServiceKey: pando.ServiceKey{Tenant: tenant, Name: name}}}}}, at)
	}
	want := func(tenant pando.Tenant, name string, service pando.ServiceName) {
		t.Helper()
		got, ok := w.Aliased(tenant, name)
		if ok != (service != "") || got.Name != service {
			t.Errorf("%s of %s is %v (%t), want %q", name, tenant, got, ok, service)
		}
	}
	put("shop", "db", "wp_db", "db.internal")
	put("shop", "backup", "wp_db")
	put("blog", "db", "wp_db")
	want("shop", "wp_db", "backup")
	want("shop", "db.internal", "db")
	want("blog", "wp_db", "db")
	want("blog", "db.internal", "")
	put("shop", "backup")
	want("shop", "wp_db", "db")
	at++
	w.Committed(pando.Txn{Delete: []pando.Key{pando.Endpoints{Service: pando.Service{
		ServiceKey: pando.ServiceKey{Tenant: "shop", Name: "db"}}}.Key()}}, at)
	want("shop", "wp_db", "")
	want("blog", "wp_db", "db")
	if len(w.aliases) != 1 {
		t.Errorf("%d further names are left", len(w.aliases))
	}
}
