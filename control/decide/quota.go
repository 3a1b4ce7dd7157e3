package decide

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"pando.run/pando"
	"pando.run/pando/access"
	"pando.run/pando/access/share"
	"pando.run/pando/lifecycle"
	"pando.run/pando/scale"
	"pando.run/pando/world"
)

// AccountOf returns the record of a tenant, or the default one. ok is false for the tenant default,
// which belongs to the operators.
func AccountOf(w *world.World, t pando.Tenant) (a access.Account, ok bool) {
	if t == pando.DefaultTenant {
		return a, false
	}
	if v, known := w.Tenants[t]; known {
		return v.V, true
	}
	return access.Account{Tenant: t, Quota: access.DefaultQuota}, true
}

// Crowded returns why a tenant may have no new service, or "". A tenant has at most a quarter of the
// services of the cluster, unless its quota says otherwise. A part of all is kept for the services
// of operators, which have the tenant default.
func Crowded(w *world.World, t pando.Tenant, most int) string {
	all := int64(len(w.Services))
	own, operators := int64(w.ServicesOf(t)), int64(w.ServicesOf(pando.DefaultTenant))
	b := share.Bound{Total: int64(most), Each: max(1, int64(most)/4), Reserve: int64(most) / 16}
	a, tenant := AccountOf(w, t)
	u := share.Use{All: all, Owners: all - operators, Own: own}
	if !tenant {
		if b.AdmitsOperator(u, 1) == nil {
			return ""
		}
		return fmt.Sprintf("the cluster has %d services, and steering holds no more; remove one "+
			"(`pando ps`, `pando rm NAME`), or serve several from one service's ports", all)
	}
	if n := a.Quota.Services; n > 0 {
		if own >= int64(n) {
			return fmt.Sprintf("tenant %s: quota services: %d of at most %d; remove one (`pando rm NAME`), "+
				"or let an operator raise it (`pando tenant set %[1]s --services`)", t, own+1, n)
		}
		b.Each = int64(n)
	}
	if err := b.Admits(u, 1); err != nil {
		return fmt.Sprintf("services of tenant %s: %s; remove one (`pando rm NAME`)", t,
			strings.TrimPrefix(err.Error(), pando.ErrRefused.Error()+": "))
	}
	return ""
}

// account returns the record of the tenant, or the default one. ok is false without a quota.
func (d *Draft) account() (access.Account, bool) {
	return AccountOf(d.w, d.svc.Tenant)
}

// beyond returns the quota that one more instance of the newest spec would exceed, or "". An
// instance in reserve is counted already, so its start exceeds none.
func (d *Draft) beyond() string {
	a, ok := d.account()
	if !ok {
		return ""
	}
	if _, warm := lifecycle.Claim(d.crew.reserve(), d.serving(), d.claims(),
		d.fellows(d.serving(), false)); warm {
		return ""
	}
	use := scale.Use(d.w.UseOf(d.svc.Tenant)).Plus(d.taken)
	spec := d.newest()
	next := spec.Resources
	if why := scale.Unbounded(a, next); why != "" {
		return why
	}
	ordinal := 0 // those of a stateful service counted at its deploy
	if spec.Ordinals() && !spec.Stateful() {
		ordinal = lifecycle.Ordinal(d.heldOrdinals(spec, d.serving()))
	}
	if why := diskBeyond(d.w, a, spec, d.svc.Sizes, ordinal); why != "" {
		return why
	}
	return scale.Beyond(a, use.Plus(scale.Of(1, next)))
}

// SizesOf returns the sizes of the volumes of a service, or those that a removed one left.
func SizesOf(w *world.World, s pando.ServiceKey) []pando.VolumeSize {
	if v, known := w.Services[s]; known {
		return v.V.Sizes
	}
	return w.Volumes[s].V.Sizes
}

// DiskOfTenants returns the sizes of the volumes of every tenant that has some. Those that a removed service
// left count until they are removed. It looks at every service.
func DiskOfTenants(w *world.World) map[pando.Tenant]int64 {
	out := map[pando.Tenant]int64{}
	for key, s := range w.Services {
		if len(s.V.Sizes) > 0 {
			out[key.Tenant] += pando.SumSizes(s.V.Sizes)
		}
	}
	for key, v := range w.Volumes {
		if _, again := w.Services[key]; !again {
			out[key.Tenant] += pando.SumSizes(v.V.Sizes)
		}
	}
	return out
}

// diskBeyond returns the quota of disk that a service with an ordinal of a spec would exceed, or "".
// known are the sizes of its volumes so far.
func diskBeyond(
	w *world.World, a access.Account, s pando.Spec, known []pando.VolumeSize, ordinal int,
) string {
	if len(s.Volumes) == 0 {
		return ""
	}
	key := s.Key()
	next := pando.KeepSizes(known, s, ordinal)
	if len(next) > pando.SizesMax {
		return fmt.Sprintf("service %s has left %d volumes behind: remove some (`pando volume ls %[1]s`, "+
			"`pando volume rm`)", key, len(known))
	}
	now, then := pando.SumSizes(known), pando.SumSizes(next)
	if a.Quota.DiskBytes == 0 || then <= now {
		return ""
	}
	use := DiskOfTenants(w)[key.Tenant] - pando.SumSizes(SizesOf(w, key)) + then
	if use <= a.Quota.DiskBytes {
		return ""
	}
	return fmt.Sprintf("tenant %s: quota disk: volumes of %g GiB of at most %g; give the volumes a smaller "+
		"size, remove some (`pando volume ls`), or let an operator raise it (`pando tenant set %[1]s --disk`)",
		a.Tenant, gib(use), gib(a.Quota.DiskBytes))
}

func gib(n int64) float64 { return math.Round(float64(n)/(1<<30)*100) / 100 }

// overdrawn returns the quota on which the next start waits, or "". It looks again later, because
// another service of the tenant may give room back.
func (d *Draft) overdrawn() string {
	why := d.beyond()
	if why == "" {
		return ""
	}
	d.lookAgain(d.now.Add(QuotaLook))
	if !d.quotaNoted {
		d.quotaNoted = true
		name, _, _ := strings.Cut(why, ": ")
		lately := slices.ContainsFunc(d.decisions, func(o pando.Decision) bool {
			return o.Kind == pando.DecidedQuota && lately(o.At, d.now, quotaNote) &&
				strings.Contains(o.Reason, name)
		})
		if !lately {
			d.record(pando.DecidedQuota, "", "a start waits: "+why, nil)
		}
	}
	return why
}

// forbidden returns the quota that a granted ask would exceed, or "".
func (d *Draft) forbidden() string {
	a, ok := d.account()
	if !ok {
		return ""
	}
	if why := scale.Hasty(a, d.w.Published(d.svc.Tenant, d.now)); why != "" {
		return why
	}
	return d.beyond()
}

// OverQuota returns the quota of its tenant that a new spec of a service would exceed, or "". It
// counts the instances that the spec always has in place of the service's present ones.
func OverQuota(w *world.World, s pando.Spec, now time.Time) string {
	key := s.Key()
	a, ok := AccountOf(w, key.Tenant)
	if !ok {
		return ""
	}
	if why := scale.Hasty(a, w.Published(key.Tenant, now)); why != "" {
		return why
	}
	if why := scale.Unbounded(a, s.Resources); why != "" {
		return why
	}
	use := scale.Use(w.UseOf(key.Tenant))
	for _, i := range w.Of(key) {
		spec, _ := w.SpecOf(key, i.Revision)
		use = use.Minus(scale.Of(1, spec.Resources))
	}
	if why := diskBeyond(w, a, s, SizesOf(w, key), s.Scale.Min); why != "" {
		return why
	}
	return scale.Beyond(a, use.Plus(scale.Of(s.Scale.Min+s.Scale.Warm, s.Resources)))
}

// PinBeyondQuota returns the quota of its tenant that a service with n instances would exceed, or "".
func PinBeyondQuota(w *world.World, s pando.ServiceKey, n int, now time.Time) string {
	a, ok := AccountOf(w, s.Tenant)
	if !ok {
		return ""
	}
	if why := scale.Hasty(a, w.Published(s.Tenant, now)); why != "" {
		return why
	}
	more := n - w.CountOf(s)
	if more <= 0 {
		return ""
	}
	spec, _ := w.SpecOf(s, w.Services[s].V.Target)
	if why := diskBeyond(w, a, spec, SizesOf(w, s), n); why != "" {
		return why
	}
	return scale.Beyond(a, scale.Use(w.UseOf(s.Tenant)).Plus(scale.Of(more, spec.Resources)))
}
