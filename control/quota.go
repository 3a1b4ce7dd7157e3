package control

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"pando.run/pando"
	"pando.run/pando/access/share"
	"pando.run/pando/lifecycle"
	"pando.run/pando/scale"
	"pando.run/pando/world"
)

// quotaLook is the time between two looks at a quota on which a start waits.
const quotaLook = 2 * time.Second

// quotaNote is the time between two records of a service that still waits.
const quotaNote = time.Hour

// accountOf returns the record of a tenant, or the default one. ok is false for the tenant default,
// which belongs to the operators.
func accountOf(w *world.World, t pando.Tenant) (a pando.Account, ok bool) {
	if t == pando.DefaultTenant {
		return a, false
	}
	if v, known := w.Tenants[t]; known {
		return v.V, true
	}
	return pando.Account{Tenant: t, Quota: pando.DefaultQuota}, true
}

// crowded returns why a tenant may have no new service, or "". A tenant has at most a quarter of the
// services of the cluster, unless its quota says otherwise. A part of all is kept for the services
// of operators, which have the tenant default.
func crowded(w *world.World, t pando.Tenant, most int) string {
	all := int64(len(w.Services))
	own, operators := int64(w.ServicesOf(t)), int64(w.ServicesOf(pando.DefaultTenant))
	b := share.Bound{Total: int64(most), Each: max(1, int64(most)/4), Reserve: int64(most) / 16}
	a, tenant := accountOf(w, t)
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
func (p *placer) account() (pando.Account, bool) {
	return accountOf(p.w, p.svc.Tenant)
}

// beyond returns the quota that one more instance of the newest spec would exceed, or "". An
// instance in reserve is counted already, so its start exceeds none.
func (p *placer) beyond() string {
	a, ok := p.account()
	if !ok {
		return ""
	}
	if _, warm := lifecycle.Claim(p.crew.reserve(), p.serving(), p.claims(),
		p.fellows(p.serving(), false)); warm {
		return ""
	}
	use := scale.Use(p.w.UseOf(p.svc.Tenant)).Plus(p.taken)
	next := p.newest().Resources
	if why := scale.Unbounded(a, next); why != "" {
		return why
	}
	return scale.Beyond(a, use.Plus(scale.Of(1, next)))
}

// overdrawn returns the quota on which the next start waits, or "". It looks again later, because
// another service of the tenant may give room back.
func (p *placer) overdrawn() string {
	why := p.beyond()
	if why == "" {
		return ""
	}
	p.lookAgain(p.now.Add(quotaLook))
	if !p.quotaNoted {
		p.quotaNoted = true
		name, _, _ := strings.Cut(why, ": ")
		lately := slices.ContainsFunc(p.decisions, func(d pando.Decision) bool {
			return d.Kind == pando.DecidedQuota && lately(d.At, p.now, quotaNote) &&
				strings.Contains(d.Reason, name)
		})
		if !lately {
			p.record(pando.DecidedQuota, "", "a start waits: "+why, nil)
		}
	}
	return why
}

// forbidden returns the quota that a granted ask would exceed, or "".
func (p *placer) forbidden() string {
	a, ok := p.account()
	if !ok {
		return ""
	}
	if why := scale.Hasty(a, p.w.Published(p.svc.Tenant, p.now)); why != "" {
		return why
	}
	return p.beyond()
}

// overQuota returns the quota of its tenant that a new spec of a service would exceed, or "". It
// counts the instances that the spec always has in place of the service's present ones.
func overQuota(w *world.World, s pando.Spec, now time.Time) string {
	key := s.Key()
	a, ok := accountOf(w, key.Tenant)
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
	return scale.Beyond(a, use.Plus(scale.Of(s.Scale.Min+s.Scale.Warm, s.Resources)))
}

// pinBeyond returns the quota of its tenant that a service with n instances would exceed, or "".
func pinBeyond(w *world.World, s pando.ServiceKey, n int, now time.Time) string {
	a, ok := accountOf(w, s.Tenant)
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
	return scale.Beyond(a, scale.Use(w.UseOf(s.Tenant)).Plus(scale.Of(more, spec.Resources)))
}
