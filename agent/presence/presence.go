// Package presence keeps new flows away from hosts that the probes find dead, or cut off from this one.
//
// It never ends a flow, and it never leaves out the last instances of a service.
package presence

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"pando.run/pando"
	"pando.run/pando/agent/records"
	"pando.run/pando/agent/steer"
	"pando.run/pando/balance"
	"pando.run/pando/edge"
	"pando.run/pando/world"
)

// Presence applies the verdicts of the probes: a host that is dead, or cut off from this one, gets no
// new flows from here, long before its lease ends. Its established flows stay in the tables.
type Presence struct {
	own      pando.HostName
	records  *records.Records
	tables   *steer.Queue
	liveness edge.Liveness // nil: only leases count
	log      *slog.Logger
	out      map[string]string // by host name: dead or cut; the lock of the records guards it
}

// New returns the presence of the hosts around one. With a nil Liveness only their leases count.
func New(
	own pando.HostName, r *records.Records, q *steer.Queue, l edge.Liveness, log *slog.Logger,
) *Presence {
	return &Presence{own: own, records: r, tables: q, liveness: l, log: log, out: map[string]string{}}
}

// The verdicts about a host.
const (
	isDead = "dead"
	isCut  = "cut"
)

// Watch names the other hosts to the prober. The caller has the world of the records, with their
// lock.
func (p *Presence) Watch(w *world.World) {
	if p.liveness == nil {
		return
	}
	var others []pando.Host
	for name, h := range w.Hosts {
		if name != p.own && p.records.IsVouched(w, h.V) {
			others = append(others, h.V)
		}
	}
	p.liveness.Watch(others)
}

// Run follows the verdicts until ctx ends.
func (p *Presence) Run(ctx context.Context) {
	if p.liveness == nil {
		return
	}
	for {
		news := p.liveness.Changed()
		p.take(p.liveness.Dead(), p.liveness.Cut())
		select {
		case <-ctx.Done():
			return
		case <-news:
		}
	}
}

// take queues the services that a change of the verdicts concerns.
func (p *Presence) take(dead, cut []pando.HostName) {
	p.records.Lock()
	defer p.records.Unlock()
	next := make(map[string]string, len(dead)+len(cut))
	for _, h := range cut {
		next[string(h)] = isCut
	}
	for _, h := range dead {
		next[string(h)] = isDead
	}
	changed := map[string]bool{}
	for h, why := range next {
		if p.out[h] == why {
			continue
		}
		changed[h] = true
		if why == isDead {
			p.log.Warn("a host is dead by the probes: it gets no new flows from here", "host", h)
		} else {
			p.log.Warn("a host lives, and no packet comes through between it and this host: it gets no "+
				"new flows from here", "host", h)
		}
	}
	for h, was := range p.out {
		if next[h] == "" {
			changed[h] = true
			p.log.Info("a host is no longer "+was+" by the probes", "host", h)
		}
	}
	p.out = next
	if len(changed) == 0 {
		return
	}
	for _, s := range slices.SortedFunc(maps.Keys(p.records.World.Endpoints), pando.ServiceKey.Compare) {
		on := func(h string) bool { return p.records.World.Endpoints[s].V.On(pando.HostName(h)) }
		if slices.ContainsFunc(slices.Collect(maps.Keys(changed)), on) {
			p.tables.Changed(s)
		}
	}
}

// LeavingOut returns find without the hosts that get no new flows of a service. local are the
// endpoints on this host. The caller has the world of the records, with their lock.
func (p *Presence) LeavingOut(
	_ *world.World, e pando.Endpoints, local []pando.Endpoint, find func(pando.HostName) (pando.Host, bool),
) func(pando.HostName) (pando.Host, bool) {
	if len(p.out) == 0 {
		return find
	}
	var takers []string
	for _, l := range local {
		if l.Weight > 0 {
			takers = append(takers, string(p.own))
		}
	}
	here := map[pando.HostName]bool{}
	for _, name := range e.Hosts {
		_, here[name] = find(name)
	}
	for _, s := range e.Seats {
		if name := e.HostOf(s); name != p.own && here[name] && s.Phase.TakesFlows() {
			takers = append(takers, string(name))
		}
	}
	lost := make(map[string]bool, len(p.out))
	for name := range p.out {
		lost[name] = true
	}
	out := balance.LeaveOut(takers, lost)
	return func(name pando.HostName) (pando.Host, bool) {
		h, here := find(name)
		return h, here && !out[string(name)]
	}
}

// Losses adds the verdicts to the losses of this host's steering.
func (p *Presence) Losses(l pando.Losses) pando.Losses {
	if p.liveness == nil {
		return l
	}
	p.records.Lock()
	defer p.records.Unlock()
	l.Forged, l.Dead, l.Cut = p.liveness.Forged(), p.named(isDead), p.named(isCut)
	return l
}

// named returns the hosts with a verdict, separated by spaces.
func (p *Presence) named(verdict string) string {
	var all []string
	for _, h := range slices.Sorted(maps.Keys(p.out)) {
		if p.out[h] == verdict {
			all = append(all, h)
		}
	}
	return strings.Join(all, " ")
}
