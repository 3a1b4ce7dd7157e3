package requests

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/access"
	"pando.run/pando/control/decide"
	"pando.run/pando/control/decide/decidetest"
)

func TestADeployBeyondTheQuotaIsRefused(t *testing.T) {
	c := visitable(t, &answering{})
	ctx, by := t.Context(), pando.Asker{Kind: pando.AskerOperator, Name: "ann"}
	n := 3
	if _, err := c.SetTenant(ctx, decidetest.Acme, access.AccountChange{Instances: &n}, by); err != nil {
		t.Fatal(err)
	}
	spec := pando.Spec{Name: "shop", Tenant: decidetest.Acme, Command: []string{"true"},
		Scale: pando.Scale{Min: 4, Max: 4}}
	_, err := c.Deploy(ctx, spec, by)
	if !errors.Is(err, pando.ErrRefused) ||
		!strings.Contains(err.Error(), "quota instances: 4 of at most 3") {
		t.Errorf("deploy: %v", err)
	}
	if _, err := c.SetTenant(ctx, "default", access.AccountChange{Instances: &n}, by); !errors.Is(err,
		pando.ErrRefused) {
		t.Errorf("a quota of the default tenant: %v", err)
	}
	wide := "0.0.0.0/0"
	if _, err := c.SetTenant(ctx, decidetest.Acme, access.AccountChange{VIPs: &wide}, by); !errors.Is(err,
		pando.ErrInvalid) {
		t.Errorf("a foreign range: %v", err)
	}
	all, err := c.Tenants(ctx)
	if err != nil || len(all) != 2 || all[0].Tenant != decidetest.Acme || all[0].Quota.Instances != 3 {
		t.Errorf("the tenants: %+v, %v", all, err)
	}
	c.desk.mirror.World.Committed(pando.Txn{Put: []pando.Stored{pando.Service{ServiceKey: decidetest.Shop}}}, 9)
	if err := c.RemoveTenant(ctx, decidetest.Acme, by); !errors.Is(err, pando.ErrRefused) {
		t.Errorf("removal with a service: %v", err)
	}
	c.desk.mirror.World.Committed(pando.Txn{Delete: []pando.Key{decidetest.Shop.Key()}}, 10)
	if err := c.RemoveTenant(ctx, decidetest.Acme, by); err != nil {
		t.Error(err)
	}
}

// A quota of disk counts the sizes of volumes: of all parts that a service ever had, of revisions
// before, and of services that are gone.
func TestVolumesCountAgainstTheQuotaOfDisk(t *testing.T) {
	tb := decidetest.New(t)
	const gib = 1 << 30
	tb.Put(access.Account{Tenant: "acme", Quota: access.Quota{DiskBytes: 100 * gib}})
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
		if why := decide.OverQuota(tb.W, c.spec, tb.Now); (why == "") != (c.why == "") || !strings.Contains(why, c.why) {
			t.Errorf("%+v: %q, want %q", c.spec.Volumes, why, c.why)
		}
	}
	tb.Put(pando.Service{ServiceKey: key, Sizes: pando.KeepSizes(nil, spec("data", 20*gib, false, 1), 4)})
	if st := tenantStatus(tb.W, "acme", tb.Now); decide.DiskOfTenants(tb.W)["acme"] != 80*gib || st.Quota.DiskBytes == 0 {
		t.Errorf("four parts take %d GiB", decide.DiskOfTenants(tb.W)["acme"]/gib)
	}
	if why := decide.PinBeyondQuota(tb.W, key, 4, tb.Now); why != "" { // no spec is known: nothing grows
		t.Errorf("a pin: %s", why)
	}
	if why := decide.OverQuota(tb.W, spec("other", 30*gib, false, 1), tb.Now); !strings.Contains(why, "110 GiB") {
		t.Errorf("another volume in a later revision: %q", why)
	}
	if why := decide.OverQuota(tb.W, spec("data", 25*gib, false, 1), tb.Now); why != "" {
		t.Errorf("a larger size within the quota: %q", why)
	}
	tb.Put(pando.VolumeHome{Service: pando.ServiceKey{Tenant: "acme", Name: "gone"},
		Sizes: []pando.VolumeSize{{Name: "data", Parts: 1, Bytes: 15 * gib}}})
	if n := decide.DiskOfTenants(tb.W)["acme"]; n != 95*gib {
		t.Errorf("with those of a removed service: %d GiB, want 95", n/gib)
	}
	if why := decide.OverQuota(tb.W, spec("data", 22*gib, false, 1), tb.Now); !strings.Contains(why, "103 GiB") {
		t.Errorf("with those of a removed service: %q", why)
	}
	x := forgetSize(tb.W, pando.ServiceKey{Tenant: "acme", Name: "gone"}, "data")
	tb.Put(x.Put...)
	if n := decide.DiskOfTenants(tb.W)["acme"]; n != 80*gib {
		t.Errorf("after their removal: %d GiB, want 80", n/gib)
	}
	tb.Put(pando.Service{ServiceKey: key, Sizes: make([]pando.VolumeSize, pando.SizesMax)})
	if why := decide.OverQuota(tb.W, spec("data", 1, false, 1), tb.Now); !strings.Contains(why, "left 64 volumes behind") {
		t.Errorf("many volumes left: %q", why)
	}
}

func TestWhoMayUseARegistryMakesNoOtherSpec(t *testing.T) {
	same := pando.Spec{Image: pando.Image{Reference: "a", Inside: true}}.WithDefaults()
	other := pando.Spec{Image: pando.Image{Reference: "a"}}.WithDefaults()
	if !sameSpec(same, other) {
		t.Error("who may use a registry makes another spec")
	}
}

// A tenant sees the names of its own instances that run without a record, although the store has no part
// of their service.
func TestATenantSeesWhatOfItRunsAdrift(t *testing.T) {
	c := visitable(t, &answering{})
	c.desk.mirror.World.Committed(pando.Txn{Put: []pando.Stored{
		pando.Host{Name: "h1", Adrift: "acme/web/web-2 bank/web/web-9 of-a-former-build"},
		pando.Host{Name: "h2", Adrift: "acme/web/web-1"},
	}}, 9)
	all, err := c.Tenants(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := map[pando.Tenant]string{}
	for _, one := range all {
		if one.Adrift != "" {
			got[one.Tenant] = one.Adrift
		}
	}
	want := map[pando.Tenant]string{"acme": "acme/web/web-1 acme/web/web-2", "bank": "bank/web/web-9"}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
