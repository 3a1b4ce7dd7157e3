package control

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"pando.run/pando"
	"pando.run/pando/lifecycle"
)

// Fits implements pando.Operators.
func (c *operators) Fits(_ context.Context, s pando.ServiceKey) ([]pando.HostFit, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	l, ok := newLedger(c.world, s, c.Clock.Now(), c.IDs)
	if !ok {
		return nil, fmt.Errorf("service %s: %w", s, pando.ErrNotFound)
	}
	p := &placer{ledger: l}
	return lifecycle.Explain(p.candidates(), p.wish(p.nextSpec(), p.home(), nil), p.waits()), nil
}

// nextSpec returns the spec of the next instance.
func (p *placer) nextSpec() pando.Spec {
	if p.rolling() {
		return p.newest()
	}
	s, _ := p.spec(p.serving())
	return s
}

// candidates returns every member and every other host with a lease, in order.
func (p *placer) candidates() []lifecycle.Candidate {
	names := map[pando.HostName]bool{}
	for h := range p.w.Members {
		names[h] = true
	}
	for h := range p.w.Hosts {
		names[h] = true
	}
	out := make([]lifecycle.Candidate, 0, len(names))
	for _, name := range slices.Sorted(maps.Keys(names)) {
		h := p.w.Hosts[name].V
		h.Name = name
		out = append(out, lifecycle.Candidate{Host: h, Standing: p.standing(name)})
	}
	return out
}
