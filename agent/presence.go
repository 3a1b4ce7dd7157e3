package agent

import (
	"context"
	"maps"
	"slices"
	"strings"

	"pando.run/pando"
	"pando.run/pando/balance"
)

// presence applies the verdicts of the probes: a host that is dead, or cut off from this one, gets no
// new flows from here, long before its lease ends. Its established flows stay in the tables. The lock
// of the records guards it.
type presence struct {
	a   *Agent
	out map[string]string // by host name: dead or cut
}

// The verdicts about a host.
const (
	isDead = "dead"
	isCut  = "cut"
)

func newPresence(a *Agent) *presence { return &presence{a: a, out: map[string]string{}} }

// watch names the other hosts to the prober. The caller holds the lock.
func (p *presence) watch() {
	if p.a.Liveness == nil {
		return
	}
	var others []pando.Host
	for name, h := range p.a.records.World.Hosts {
		if name != p.a.Host.Name && p.a.records.IsVouched(p.a.records.World, h.V) {
			others = append(others, h.V)
		}
	}
	p.a.Liveness.Watch(others)
}

// run follows the verdicts until ctx ends.
func (p *presence) run(ctx context.Context) {
	if p.a.Liveness == nil {
		return
	}
	for {
		news := p.a.Liveness.Changed()
		p.take(p.a.Liveness.Dead(), p.a.Liveness.Cut())
		select {
		case <-ctx.Done():
			return
		case <-news:
		}
	}
}

// take queues the services that a change of the verdicts concerns.
func (p *presence) take(dead, cut []pando.HostName) {
	p.a.records.Lock()
	defer p.a.records.Unlock()
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
			p.a.Log.Warn("a host is dead by the probes: it gets no new flows from here", "host", h)
		} else {
			p.a.Log.Warn("a host lives, and no packet comes through between it and this host: it gets no "+
				"new flows from here", "host", h)
		}
	}
	for h, was := range p.out {
		if next[h] == "" {
			changed[h] = true
			p.a.Log.Info("a host is no longer "+was+" by the probes", "host", h)
		}
	}
	p.out = next
	if len(changed) == 0 {
		return
	}
	for _, s := range slices.SortedFunc(maps.Keys(p.a.records.World.Endpoints), pando.ServiceKey.Compare) {
		on := func(h string) bool { return p.a.records.World.Endpoints[s].V.On(pando.HostName(h)) }
		if slices.ContainsFunc(slices.Collect(maps.Keys(changed)), on) {
			p.a.crews.steering.Changed(s)
		}
	}
}

// leavingOut returns find without the hosts that get no new flows of a service. local are the
// endpoints on this host. The caller holds the lock.
func (p *presence) leavingOut(
	e pando.Endpoints, local []pando.Endpoint, find func(pando.HostName) (pando.Host, bool),
) func(pando.HostName) (pando.Host, bool) {
	if len(p.out) == 0 {
		return find
	}
	var takers []string
	for _, l := range local {
		if l.Weight > 0 {
			takers = append(takers, string(p.a.Host.Name))
		}
	}
	here := map[pando.HostName]bool{}
	for _, name := range e.Hosts {
		_, here[name] = find(name)
	}
	for _, s := range e.Seats {
		if name := e.HostOf(s); name != p.a.Host.Name && here[name] && s.Phase.TakesFlows() {
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

// losses adds the verdicts to the losses of this host's steering.
func (p *presence) losses(l pando.Losses) pando.Losses {
	if p.a.Liveness == nil {
		return l
	}
	p.a.records.Lock()
	defer p.a.records.Unlock()
	l.Forged, l.Dead, l.Cut = p.a.Liveness.Forged(), p.named(isDead), p.named(isCut)
	return l
}

// named returns the hosts with a verdict, separated by spaces. The caller holds the lock.
func (p *presence) named(verdict string) string {
	var all []string
	for _, h := range slices.Sorted(maps.Keys(p.out)) {
		if p.out[h] == verdict {
			all = append(all, h)
		}
	}
	return strings.Join(all, " ")
}
