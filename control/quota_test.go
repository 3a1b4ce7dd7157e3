package control

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide"
	"pando.run/pando/world"
)

var (
	acme = pando.Tenant("acme")
	shop = pando.ServiceKey{Tenant: acme, Name: "shop"}
)

// sold returns a table with the service shop of tenant acme, which has a quota.
func sold(t *testing.T, q pando.Quota, s pando.Spec) *table {
	tb := newTable(t)
	tb.put(pando.Account{Tenant: acme, Quota: q})
	tb.create(shop, s)
	tb.settleOn(shop)
	return tb
}

func (tb *table) create(k pando.ServiceKey, s pando.Spec) {
	s.Name, s.Tenant, s.Command = k.Name, k.Tenant, []string{"true"}
	tb.put(pando.Service{ServiceKey: k, Target: 1, Latest: 1},
		pando.Revision{Service: k, Number: 1, Spec: s.WithDefaults()})
}

// settleOn decides about a service until nothing more is to be written.
func (tb *table) settleOn(k pando.ServiceKey) {
	tb.t.Helper()
	for range 50 {
		txn, _ := decide.Decide(tb.w, k, tb.now, tb.ids)
		if len(txn.Put)+len(txn.Delete) == 0 {
			return
		}
		tb.rev++
		tb.commit(txn, tb.rev)
		world.Publish(tb.w, txn, tb.now)
	}
	tb.t.Fatalf("the decisions about %s do not settle", k)
}

// asks answers one ask for an instance.
func (tb *table) asks(k pando.ServiceKey) pando.Intent {
	ask := pando.Intent{
		ID: pando.IntentID(tb.ids.Sequential(tb.now)), Service: k, Verb: pando.VerbReplicate,
		Host: "h1", By: pando.Asker{Kind: pando.AskerOperator},
	}.Become(pando.IntentAsked, tb.now, "more")
	txn, _ := decide.Decide(tb.w, k, tb.now, tb.ids, ask)
	tb.rev++
	tb.commit(txn, tb.rev)
	world.Publish(tb.w, txn, tb.now)
	tb.now = tb.now.Add(100 * time.Millisecond)
	return tb.w.Intents[ask.ID].V
}

func TestAnAskBeyondTheTenantsQuotaIsRefused(t *testing.T) {
	tb := sold(t, pando.Quota{Instances: 2}, pando.Spec{Scale: pando.Scale{Min: 1, Max: 9}})
	if i := tb.asks(shop); i.State != pando.IntentPlaced {
		t.Fatalf("the second of 2 instances: %+v", i)
	}
	i := tb.asks(shop)
	if i.State != pando.IntentRefused ||
		i.Reason != "tenant acme: quota instances: 3 of at most 2" {
		t.Errorf("the third: %s, %q", i.State, i.Reason)
	}
	// Another tenant, and the default one, do not notice.
	tb.create(pando.ServiceKey{Tenant: "other", Name: "shop"}, pando.Spec{Scale: pando.Scale{Max: 3}})
	tb.settleOn(pando.ServiceKey{Tenant: "other", Name: "shop"})
	if n := tb.w.CountOf(pando.ServiceKey{Tenant: "other", Name: "shop"}); n != 1 {
		t.Errorf("another tenant has %d instances, want 1", n)
	}
	if u := tb.w.UseOf(acme); u.Instances != 2 {
		t.Errorf("the tenant takes %d instances, want 2", u.Instances)
	}
}

// Two services of a tenant share its quota. The second one waits until there is room.
func TestAServiceWaitsForItsTenantsQuota(t *testing.T) {
	limits := pando.Resources{CPUs: 0.5}
	tb := sold(t, pando.Quota{CPUs: 1},
		pando.Spec{Resources: limits, Scale: pando.Scale{Min: 2, Max: 2}})
	second := pando.ServiceKey{Tenant: acme, Name: "desk"}
	tb.create(second, pando.Spec{Resources: limits})
	tb.settleOn(second)
	if n := tb.w.CountOf(second); n != 0 {
		t.Fatalf("%d instances start beyond the quota", n)
	}
	svc := tb.w.Services[second].V
	if svc.Phase != pando.ServiceDegraded || !strings.Contains(svc.Reason, "quota cpus: 1.5 of") {
		t.Errorf("it is %s: %s", svc.Phase, svc.Reason)
	}
	noted := 0
	for _, d := range tb.w.DecisionsOf(second) {
		if d.Kind == pando.DecidedQuota {
			noted++
		}
	}
	if noted != 1 {
		t.Errorf("the wait is recorded %d times, want once", noted)
	}
	if _, look := decide.Decide(tb.w, second, tb.now, tb.ids); !look.Equal(tb.now.Add(decide.QuotaLook)) {
		t.Errorf("the next look is at %s", look)
	}
	tb.put(pando.Account{Tenant: acme, Quota: pando.Quota{CPUs: 2}})
	tb.settleOn(second)
	if n := tb.w.CountOf(second); n != 1 {
		t.Errorf("%d instances with room, want 1", n)
	}
}

func TestTheTablesOfATenantChangeAtARate(t *testing.T) {
	tb := sold(t, pando.Quota{PublishPerSecond: 2}, pando.Spec{Scale: pando.Scale{Min: 1, Max: 50}})
	tb.now = tb.now.Add(2 * time.Second)
	for n, want := range []pando.IntentState{
		pando.IntentPlaced, pando.IntentPlaced, pando.IntentRefused,
	} {
		if i := tb.asks(shop); i.State != want {
			t.Fatalf("ask %d: %s, %s", n, i.State, i.Reason)
		}
	}
	tb.now = tb.now.Add(time.Second)
	if i := tb.asks(shop); i.State != pando.IntentPlaced {
		t.Errorf("a second later: %s, %s", i.State, i.Reason)
	}
}

func TestTheVIPsOfATenantAreItsOwn(t *testing.T) {
	tb := newTable(t)
	b := pando.VIPs4.Addr().As4()
	b[3] = 0
	low, b5 := netip.PrefixFrom(netip.AddrFrom4(b), 24), b
	b5[2] += 5
	tb.put(pando.Account{Tenant: acme, VIPs: netip.PrefixFrom(netip.AddrFrom4(b5), 24)},
		pando.Account{Tenant: "first", VIPs: low})
	for _, k := range []pando.ServiceKey{shop, web} {
		tb.create(k, pando.Spec{})
		tb.settleOn(k)
	}
	if v := tb.w.Services[shop].V.VIP4; !tb.w.Tenants[acme].V.VIPs.Contains(v) {
		t.Errorf("the VIP of acme's service is %s", v)
	}
	if v := tb.w.Services[web].V.VIP4; !v.IsValid() || low.Contains(v) {
		t.Errorf("the VIP of a service of the default tenant is %s", v)
	}
}

func TestADeployBeyondTheQuotaIsRefused(t *testing.T) {
	c := visitable(t, &hosts{})
	ctx, by := t.Context(), pando.Asker{Kind: pando.AskerOperator, Name: "ann"}
	n := 3
	if _, err := c.SetTenant(ctx, acme, pando.AccountChange{Instances: &n}, by); err != nil {
		t.Fatal(err)
	}
	spec := pando.Spec{Name: "shop", Tenant: acme, Command: []string{"true"},
		Scale: pando.Scale{Min: 4, Max: 4}}
	_, err := c.Deploy(ctx, spec, by)
	if !errors.Is(err, pando.ErrRefused) ||
		!strings.Contains(err.Error(), "quota instances: 4 of at most 3") {
		t.Errorf("deploy: %v", err)
	}
	if _, err := c.SetTenant(ctx, "default", pando.AccountChange{Instances: &n}, by); !errors.Is(err,
		pando.ErrRefused) {
		t.Errorf("a quota of the default tenant: %v", err)
	}
	wide := "0.0.0.0/0"
	if _, err := c.SetTenant(ctx, acme, pando.AccountChange{VIPs: &wide}, by); !errors.Is(err,
		pando.ErrInvalid) {
		t.Errorf("a foreign range: %v", err)
	}
	all, err := c.Tenants(ctx)
	if err != nil || len(all) != 2 || all[0].Tenant != acme || all[0].Quota.Instances != 3 {
		t.Errorf("the tenants: %+v, %v", all, err)
	}
	c.world.Committed(pando.Txn{Put: []pando.Stored{pando.Service{ServiceKey: shop}}}, 9)
	if err := c.RemoveTenant(ctx, acme, by); !errors.Is(err, pando.ErrRefused) {
		t.Errorf("removal with a service: %v", err)
	}
	c.world.Committed(pando.Txn{Delete: []pando.Key{shop.Key()}}, 10)
	if err := c.RemoveTenant(ctx, acme, by); err != nil {
		t.Error(err)
	}
}

// One tenant deploys until it is refused. Another tenant and the operators still get theirs.
func TestServicesHaveAShareForEachTenant(t *testing.T) {
	const most = 64
	tb := newTable(t)
	fill := func(tenant pando.Tenant) (n int, why string) {
		for ; ; n++ {
			if why = decide.Crowded(tb.w, tenant, most); why != "" || n > most {
				return n, why
			}
			tb.put(pando.Service{ServiceKey: pando.ServiceKey{Tenant: tenant,
				Name: pando.ServiceName(fmt.Sprint("s", n))}})
		}
	}
	tb.put(pando.Account{Tenant: "acme"}, pando.Account{Tenant: "small", Quota: pando.Quota{Services: 2}})
	for _, c := range []struct {
		tenant pando.Tenant
		want   int
		why    string
	}{
		{"acme", most / 4, "16 of the 16 that one owner may have"},
		{"small", 2, "quota services: 3 of at most 2"},
		{"bank", most - most/16 - most/4 - 2, "4 of them are kept for operators"}, // without a record
		{"late", 0, "kept for operators"},
		{pando.DefaultTenant, most / 16, "the cluster has 64 services"},
	} {
		if n, why := fill(c.tenant); n != c.want || !strings.Contains(why, c.why) {
			t.Errorf("%s has %d services (%s), want %d", c.tenant, n, why, c.want)
		}
	}
}

func TestATenantWithoutARecordHasTheDefaultQuota(t *testing.T) {
	tb := newTable(t)
	spec := pando.Spec{Name: "shop", Tenant: "acme", Command: []string{"shop"},
		Scale: pando.Scale{Min: pando.DefaultQuota.Instances + 1, Max: 1000}}.WithDefaults()
	if why := decide.OverQuota(tb.w, spec, tb.now); !strings.Contains(why, "quota instances: 201 of at most 200") {
		t.Errorf("beyond the default quota: %q", why)
	}
	spec.Tenant = pando.DefaultTenant
	if why := decide.OverQuota(tb.w, spec, tb.now); why != "" {
		t.Errorf("the tenant of the operators: %q", why)
	}
	spec.Tenant = "acme"
	tb.put(pando.Account{Tenant: "acme", Quota: pando.Quota{Instances: 300}})
	if why := decide.OverQuota(tb.w, spec, tb.now); why != "" {
		t.Errorf("with a record: %q", why)
	}
}

func TestWhoMayUseARegistryMakesNoOtherSpec(t *testing.T) {
	same := pando.Spec{Image: pando.Image{Reference: "a", Inside: true}}.WithDefaults()
	other := pando.Spec{Image: pando.Image{Reference: "a"}}.WithDefaults()
	if !sameSpec(same, other) {
		t.Error("who may use a registry makes another spec")
	}
}

// A quota of disk counts the sizes of volumes: of all parts that a service ever had, of revisions
// before, and of services that are gone.
func TestVolumesCountAgainstTheQuotaOfDisk(t *testing.T) {
	tb := newTable(t)
	const gib = 1 << 30
	tb.put(pando.Account{Tenant: "acme", Quota: pando.Quota{DiskBytes: 100 * gib}})
	key := pando.ServiceKey{Tenant: "acme", Name: "db"}
	spec := func(name string, bytes int64, shared bool, most int) pando.Spec {
		return pando.Spec{Name: "db", Tenant: "acme", Command: []string{"db"},
			Volumes: []pando.Volume{{Name: name, Path: "/d", Shared: shared, Bytes: bytes}},
			Scale:   pando.Scale{Min: most, Max: 200}}.WithDefaults()
	}
	for _, c := range []struct {
		spec pando.Spec
		why  string
	}{
		{spec("data", 100*gib, false, 1), ""},
		{spec("data", 101*gib, false, 1), "quota disk: volumes of 101 GiB of at most 100"},
		{spec("data", 40*gib, false, 3), "quota disk: volumes of 120 GiB of at most 100"},
		{spec("data", 40*gib, true, 3), ""},
		{spec("data", 0, false, 10), ""},
		{spec("data", 0, false, 11), "quota disk: volumes of 110 GiB"}, // the default size
	} {
		if why := decide.OverQuota(tb.w, c.spec, tb.now); (why == "") != (c.why == "") || !strings.Contains(why, c.why) {
			t.Errorf("%+v: %q, want %q", c.spec.Volumes, why, c.why)
		}
	}
	tb.put(pando.Service{ServiceKey: key, Sizes: pando.KeepSizes(nil, spec("data", 20*gib, false, 1), 4)})
	if st := tenantStatus(tb.w, "acme", tb.now); decide.DiskOfTenants(tb.w)["acme"] != 80*gib || st.Quota.DiskBytes == 0 {
		t.Errorf("four parts take %d GiB", decide.DiskOfTenants(tb.w)["acme"]/gib)
	}
	if why := decide.PinBeyondQuota(tb.w, key, 4, tb.now); why != "" { // no spec is known: nothing grows
		t.Errorf("a pin: %s", why)
	}
	if why := decide.OverQuota(tb.w, spec("other", 30*gib, false, 1), tb.now); !strings.Contains(why, "110 GiB") {
		t.Errorf("another volume in a later revision: %q", why)
	}
	if why := decide.OverQuota(tb.w, spec("data", 25*gib, false, 1), tb.now); why != "" {
		t.Errorf("a larger size within the quota: %q", why)
	}
	tb.put(pando.VolumeHome{Service: pando.ServiceKey{Tenant: "acme", Name: "gone"},
		Sizes: []pando.VolumeSize{{Name: "data", Parts: 1, Bytes: 15 * gib}}})
	if n := decide.DiskOfTenants(tb.w)["acme"]; n != 95*gib {
		t.Errorf("with those of a removed service: %d GiB, want 95", n/gib)
	}
	if why := decide.OverQuota(tb.w, spec("data", 22*gib, false, 1), tb.now); !strings.Contains(why, "103 GiB") {
		t.Errorf("with those of a removed service: %q", why)
	}
	x := forgetSize(tb.w, pando.ServiceKey{Tenant: "acme", Name: "gone"}, "data")
	tb.put(x.Put...)
	if n := decide.DiskOfTenants(tb.w)["acme"]; n != 80*gib {
		t.Errorf("after their removal: %d GiB, want 80", n/gib)
	}
	tb.put(pando.Service{ServiceKey: key, Sizes: make([]pando.VolumeSize, pando.SizesMax)})
	if why := decide.OverQuota(tb.w, spec("data", 1, false, 1), tb.now); !strings.Contains(why, "left 64 volumes behind") {
		t.Errorf("many volumes left: %q", why)
	}
}
