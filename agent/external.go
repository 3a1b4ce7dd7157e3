package agent

import (
	"context"
	"fmt"

	"pando.run/pando"
)

// judgeExternal gives an external endpoint its share of new flows by the result of a live probe. An
// endpoint that does not answer gets none until it answers again. Its instance stays, because a
// restart would change nothing. The last endpoint with a share keeps it.
func (r *runner) judgeExternal(ctx context.Context, e pando.External, fall int, err error) {
	at := pando.External{Address: e.Address, Port: e.Port}
	if err == nil {
		back := r.inst.Weight == 0
		r.watch.falls, r.watch.spared = 0, false
		r.setWeight(e.Weight, "it answers its live probes again")
		if back {
			r.decide(ctx, pando.DecidedUnhealthy,
				fmt.Sprintf("%s answers again and gets new connections", at), nil)
		}
		return
	}
	if r.watch.falls++; r.watch.falls < fall || r.inst.Weight == 0 {
		return
	}
	reason := fmt.Sprintf("%s: %d live probes failed: %v", at, fall, err)
	switch {
	case r.a.crews.onlyShare(r):
		if !r.watch.spared { // record it once until the endpoint answers again
			r.watch.spared = true
			r.decide(ctx, pando.DecidedUnhealthy,
				reason+"; it stays, for no other endpoint gets new connections", nil)
		}
	default:
		r.setWeight(0, reason)
		r.decide(ctx, pando.DecidedUnhealthy,
			reason+"; it gets no new connections until it answers", nil)
	}
}

// onlyShare reports whether no other instance of the service has a share of new flows.
func (c *crews) onlyShare(r *runner) bool {
	c.records.Lock()
	defer c.records.Unlock()
	for _, o := range c.of[r.service] {
		if s := c.current(o); o != r && s.runs && s.inst.Phase.TakesFlows() && s.inst.Weight > 0 {
			return false
		}
	}
	for _, t := range c.records.World.Endpoints[r.service].V.Seats {
		if c.runners[t.Instance] == nil && t.Phase.TakesFlows() && t.Weight > 0 {
			return false
		}
	}
	return true
}
