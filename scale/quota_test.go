package scale

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"pando.run/pando"
	"pando.run/pando/access"
)

func TestAQuotaIsNamedWithItsNumbers(t *testing.T) {
	a := access.Account{Tenant: "acme",
		Quota: access.Quota{Instances: 2, CPUs: 1, MemoryBytes: 64 << 20}}
	for _, c := range []struct {
		use  Use
		want string
	}{
		{Use{Instances: 2, CPUs: 1, MemoryBytes: 64 << 20}, ""},
		{Use{Instances: 3}, "tenant acme: quota instances: 3 of at most 2"},
		{Use{Instances: 1, CPUs: 1.5}, "tenant acme: quota cpus: 1.5 of at most 1"},
		{Use{MemoryBytes: 65 << 20}, "tenant acme: quota memory: 65 MiB of at most 64 MiB"},
	} {
		if got := Beyond(a, c.use); got != c.want {
			t.Errorf("%+v: %q, want %q", c.use, got, c.want)
		}
	}
	if got := Beyond(access.Account{Tenant: "acme"}, Use{Instances: 1e6, CPUs: 1e6}); got != "" {
		t.Errorf("without a quota: %q", got)
	}
}

func TestATenantWithAQuotaSetsLimits(t *testing.T) {
	a := access.Account{Tenant: "acme", Quota: access.Quota{CPUs: 1, MemoryBytes: 1 << 20}}
	for _, c := range []struct {
		r    pando.Resources
		want string
	}{
		{pando.Resources{}, "without resources.cpus"},
		{pando.Resources{CPUs: 1}, "without resources.memory"},
		{pando.Resources{CPUs: 1, MemoryBytes: 1}, ""},
	} {
		if got := Unbounded(a, c.r); !strings.Contains(got, c.want) || (c.want == "") != (got == "") {
			t.Errorf("%+v: %q, want %q", c.r, got, c.want)
		}
	}
}

func TestChangesHaveARate(t *testing.T) {
	a := access.Account{Tenant: "acme", Quota: access.Quota{PublishPerSecond: 2}}
	for n, refused := range []bool{false, false, true, true} {
		if got := Hasty(a, n); (got != "") != refused {
			t.Errorf("after %d changes: %q", n, got)
		}
	}
	a.Quota.PublishPerSecond = 0.1 // one at a time
	if Hasty(a, 0) != "" || Hasty(a, 1) == "" {
		t.Error("a rate below one a second refuses the first change, or allows two")
	}
}

// Instances that are admitted one by one never exceed a quota together.
func TestAdmittedInstancesStayWithinTheQuota(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := access.Account{Tenant: "acme", Quota: access.Quota{
			Instances:   rapid.IntRange(0, 20).Draw(t, "instances"),
			CPUs:        float64(rapid.IntRange(0, 80).Draw(t, "tenths")) / 10,
			MemoryBytes: rapid.Int64Range(0, 1000).Draw(t, "memory"),
		}}
		var use Use
		for range rapid.IntRange(0, 60).Draw(t, "asks") {
			next := Of(1, pando.Resources{
				CPUs:        float64(rapid.IntRange(1, 20).Draw(t, "cpus")) / 10,
				MemoryBytes: rapid.Int64Range(1, 200).Draw(t, "bytes"),
			})
			if Beyond(a, use.Plus(next)) == "" {
				use = use.Plus(next)
			}
		}
		q := a.Quota
		if q.Instances > 0 && use.Instances > q.Instances ||
			q.MemoryBytes > 0 && use.MemoryBytes > q.MemoryBytes ||
			q.CPUs > 0 && use.CPUs > q.CPUs+cpuGrain {
			t.Fatalf("%+v are admitted under %+v", use, q)
		}
	})
}

func TestAnAskBeyondAQuotaIsRefusedByItsName(t *testing.T) {
	b := Budget{Scale: pando.Scale{Max: 9}, Beyond: "tenant acme: quota instances: 3 of at most 2"}
	v := Replicate(b, pando.Asker{Kind: pando.AskerInstance, Name: "web-1"}, t0)
	if v.State != pando.IntentRefused || v.Reason != b.Beyond {
		t.Errorf("%+v", v)
	}
	b.Beyond = ""
	if v := Replicate(b, pando.Asker{Kind: pando.AskerInstance}, t0); v.State != pando.IntentGranted {
		t.Errorf("without the quota: %+v", v)
	}
}
