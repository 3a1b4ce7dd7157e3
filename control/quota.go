package control

import (
	"slices"
	"strings"
	"time"

	"pando.run/pando"
	"pando.run/pando/lifecycle"
	"pando.run/pando/scale"
	"pando.run/pando/world"
)

// quotaLook is the time between two looks at a quota on which a start waits.
const quotaLook = 2 * time.Second

// quotaNote is the time between two records of a service that still waits.
const quotaNote = time.Hour

// account returns the record of the tenant, if it has one.
func (p *placer) account() (pando.Account, bool) {
	a, ok := p.w.Tenants[p.svc.Tenant]
	return a.V, ok
}

// beyond returns the quota that one more instance of the newest spec would exceed, or "". An
// instance in reserve is counted already, so its start exceeds none.
func (p *placer) beyond() string {
	a, ok := p.account()
	if !ok {
		return ""
	}
	if _, warm := lifecycle.Claim(p.crew.reserve(), p.serving(), p.claims()); warm {
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
	a, ok := w.Tenants[key.Tenant]
	if !ok {
		return ""
	}
	if why := scale.Hasty(a.V, w.Published(key.Tenant, now)); why != "" {
		return why
	}
	if why := scale.Unbounded(a.V, s.Resources); why != "" {
		return why
	}
	use := scale.Use(w.UseOf(key.Tenant))
	for _, i := range w.Of(key) {
		spec, _ := w.SpecOf(key, i.Revision)
		use = use.Minus(scale.Of(1, spec.Resources))
	}
	return scale.Beyond(a.V, use.Plus(scale.Of(s.Scale.Min+s.Scale.Warm, s.Resources)))
}

// pinBeyond returns the quota of its tenant that a service with n instances would exceed, or "".
func pinBeyond(w *world.World, s pando.ServiceKey, n int, now time.Time) string {
	a, ok := w.Tenants[s.Tenant]
	if !ok {
		return ""
	}
	if why := scale.Hasty(a.V, w.Published(s.Tenant, now)); why != "" {
		return why
	}
	more := n - w.CountOf(s)
	if more <= 0 {
		return ""
	}
	spec, _ := w.SpecOf(s, w.Services[s].V.Target)
	return scale.Beyond(a.V, scale.Use(w.UseOf(s.Tenant)).Plus(scale.Of(more, spec.Resources)))
}
