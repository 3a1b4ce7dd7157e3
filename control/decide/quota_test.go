package decide_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/access"
	"pando.run/pando/control/decide"
	"pando.run/pando/control/decide/decidetest"
)

// sold returns a table with the service shop of tenant acme, which has a quota.
func sold(t *testing.T, q access.Quota, s pando.Spec) *decidetest.Table {
	tb := decidetest.New(t)
	tb.Put(access.Account{Tenant: decidetest.Acme, Quota: q})
	tb.Create(decidetest.Shop, s)
	tb.SettleOn(decidetest.Shop)
	return tb
}

func TestAnAskBeyondTheTenantsQuotaIsRefused(t *testing.T) {
	tb := sold(t, access.Quota{Instances: 2}, pando.Spec{Scale: pando.Scale{Min: 1, Max: 9}})
	if i := tb.Asks(decidetest.Shop); i.State != pando.IntentPlaced {
		t.Fatalf("the second of 2 instances: %+v", i)
	}
	i := tb.Asks(decidetest.Shop)
	if i.State != pando.IntentRefused ||
		i.Reason != "tenant acme: quota instances: 3 of at most 2" {
		t.Errorf("the third: %s, %q", i.State, i.Reason)
	}
	// Another tenant, and the default one, do not notice.
	tb.Create(pando.ServiceKey{Tenant: "other", Name: "shop"}, pando.Spec{Scale: pando.Scale{Max: 3}})
	tb.SettleOn(pando.ServiceKey{Tenant: "other", Name: "shop"})
	if n := tb.W.CountOf(pando.ServiceKey{Tenant: "other", Name: "shop"}); n != 1 {
		t.Errorf("another tenant has %d instances, want 1", n)
	}
	if u := tb.W.UseOf(decidetest.Acme); u.Instances != 2 {
		t.Errorf("the tenant takes %d instances, want 2", u.Instances)
	}
}

// Two services of a tenant share its quota. The second one waits until there is room.
func TestAServiceWaitsForItsTenantsQuota(t *testing.T) {
	limits := pando.Resources{CPUs: 0.5}
	tb := sold(t, access.Quota{CPUs: 1},
		pando.Spec{Resources: limits, Scale: pando.Scale{Min: 2, Max: 2}})
	second := pando.ServiceKey{Tenant: decidetest.Acme, Name: "desk"}
	tb.Create(second, pando.Spec{Resources: limits})
	tb.SettleOn(second)
	if n := tb.W.CountOf(second); n != 0 {
		t.Fatalf("%d instances start beyond the quota", n)
	}
	svc := tb.W.Services[second].V
	if svc.Phase != pando.ServiceDegraded || !strings.Contains(svc.Reason, "quota cpus: 1.5 of") {
		t.Errorf("it is %s: %s", svc.Phase, svc.Reason)
	}
	noted := 0
	for _, d := range tb.W.DecisionsOf(second) {
		if d.Kind == pando.DecidedQuota {
			noted++
		}
	}
	if noted != 1 {
		t.Errorf("the wait is recorded %d times, want once", noted)
	}
	if _, look := decide.Decide(tb.W, second, tb.Now, tb.IDs); !look.Equal(tb.Now.Add(decide.QuotaLook)) {
		t.Errorf("the next look is at %s", look)
	}
	tb.Put(access.Account{Tenant: decidetest.Acme, Quota: access.Quota{CPUs: 2}})
	tb.SettleOn(second)
	if n := tb.W.CountOf(second); n != 1 {
		t.Errorf("%d instances with room, want 1", n)
	}
}

func TestTheTablesOfATenantChangeAtARate(t *testing.T) {
	tb := sold(t, access.Quota{PublishPerSecond: 2}, pando.Spec{Scale: pando.Scale{Min: 1, Max: 50}})
	tb.Now = tb.Now.Add(2 * time.Second)
	for n, want := range []pando.IntentState{
		pando.IntentPlaced, pando.IntentPlaced, pando.IntentRefused,
	} {
		if i := tb.Asks(decidetest.Shop); i.State != want {
			t.Fatalf("ask %d: %s, %s", n, i.State, i.Reason)
		}
	}
	tb.Now = tb.Now.Add(time.Second)
	if i := tb.Asks(decidetest.Shop); i.State != pando.IntentPlaced {
		t.Errorf("a second later: %s, %s", i.State, i.Reason)
	}
}

func TestTheVIPsOfATenantAreItsOwn(t *testing.T) {
	tb := decidetest.New(t)
	b := pando.VIPs4.Addr().As4()
	b[3] = 0
	low, b5 := netip.PrefixFrom(netip.AddrFrom4(b), 24), b
	b5[2] += 5
	tb.Put(access.Account{Tenant: decidetest.Acme, VIPs: netip.PrefixFrom(netip.AddrFrom4(b5), 24)},
		access.Account{Tenant: "first", VIPs: low})
	for _, k := range []pando.ServiceKey{decidetest.Shop, web} {
		tb.Create(k, pando.Spec{})
		tb.SettleOn(k)
	}
	if v := tb.W.Services[decidetest.Shop].V.VIP4; !tb.W.Tenants[decidetest.Acme].V.VIPs.Contains(v) {
		t.Errorf("the VIP of acme's service is %s", v)
	}
	if v := tb.W.Services[web].V.VIP4; !v.IsValid() || low.Contains(v) {
		t.Errorf("the VIP of a service of the default tenant is %s", v)
	}
}

// One tenant deploys until it is refused. Another tenant and the operators still get theirs.
func TestServicesHaveAShareForEachTenant(t *testing.T) {
	const most = 64
	tb := decidetest.New(t)
	fill := func(tenant pando.Tenant) (n int, why string) {
		for ; ; n++ {
			if why = decide.Crowded(tb.W, tenant, most); why != "" || n > most {
				return n, why
			}
			tb.Put(pando.Service{ServiceKey: pando.ServiceKey{Tenant: tenant,
				Name: pando.ServiceName(fmt.Sprint("s", n))}})
		}
	}
	tb.Put(access.Account{Tenant: "acme"}, access.Account{Tenant: "small", Quota: access.Quota{Services: 2}})
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
	tb := decidetest.New(t)
	spec := pando.Spec{Name: "shop", Tenant: "acme", Command: []string{"shop"},
		Scale: pando.Scale{Min: access.DefaultQuota.Instances + 1, Max: 1000}}.WithDefaults()
	if why := decide.OverQuota(tb.W, spec, tb.Now); !strings.Contains(why, "quota instances: 201 of at most 200") {
		t.Errorf("beyond the default quota: %q", why)
	}
	spec.Tenant = pando.DefaultTenant
	if why := decide.OverQuota(tb.W, spec, tb.Now); why != "" {
		t.Errorf("the tenant of the operators: %q", why)
	}
	spec.Tenant = "acme"
	tb.Put(access.Account{Tenant: "acme", Quota: access.Quota{Instances: 300}})
	if why := decide.OverQuota(tb.W, spec, tb.Now); why != "" {
		t.Errorf("with a record: %q", why)
	}
}
