package requests

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide"
	"pando.run/pando/lifecycle"
	"pando.run/pando/world"
)

// rebalancer moves instances between hosts for an operator.
type rebalancer struct{ desk *desk }

// Rebalance implements pando.HostOperators.
func (c *rebalancer) Rebalance(
	ctx context.Context, ask pando.RebalanceAsk, by pando.Asker,
) (pando.Rebalance, error) {
	c.desk.mirror.Mu.Lock()
	_, known := c.desk.mirror.World.Services[ask.Service]
	out, shifts := c.plan(ask)
	c.desk.mirror.Mu.Unlock()
	if ask.Service.Name != "" && !known {
		return out, fmt.Errorf("service %s: %w; `pando status` lists the services", ask.Service,
			pando.ErrNotFound)
	}
	if ask.DryRun || len(out.Moving) > 0 {
		return out, nil
	}
	by.Request = "" // each request of a rebalance takes further steps
	for _, m := range shifts[:min(len(shifts), pando.ShiftsMax)] {
		shift := m.Shift
		err := c.desk.edit(ctx, m.Service, by, func(svc *pando.Service, _ time.Time) (*pando.Decision, error) {
			if svc.Shift != nil || svc.Removing || len(shift.Instances) == 0 && svc.Home != shift.From {
				return nil, nil // it has changed meanwhile: the next request looks again
			}
			svc.Shift = &shift
			return &pando.Decision{Kind: pando.DecidedMove, By: by, Reason: fmt.Sprintf(
				"a rebalance moves %d of its instances from %s to %s", m.Count, shift.From, shift.To)}, nil
		})
		if err != nil {
			return out, err
		}
		out.Moving = append(out.Moving, moveOf(m))
	}
	out.Next = []pando.RebalanceMove{}
	return out, nil
}

// planMax bounds the steps of a plan.
const planMax = 100

// plan returns the moves in progress and the plan of those that follow. The caller holds the
// lock.
func (c *rebalancer) plan(ask pando.RebalanceAsk) (out pando.Rebalance, _ []lifecycle.Relocation) {
	out = pando.Rebalance{Moving: []pando.RebalanceMove{}, Next: []pando.RebalanceMove{}}
	var blocks []lifecycle.Block
	for _, s := range c.desk.mirror.World.Names() {
		svc := c.desk.mirror.World.Services[s].V
		if svc.Shift != nil {
			out.Moving = append(out.Moving, movingOf(c.desk.mirror.World, svc))
			continue
		}
		if ask.Service.Name == "" || ask.Service == s {
			if d, ok := decide.About(c.desk.mirror.World, s, c.desk.mirror.Clock.Now(), c.desk.mirror.IDs); ok {
				blocks = append(blocks, d.Blocks()...)
			}
		}
	}
	hosts, loads := []pando.Host{}, map[pando.HostName]lifecycle.Load{}
	for _, name := range c.desk.mirror.World.HostNames() {
		if decide.TakesNew(c.desk.mirror.World, name) {
			hosts = append(hosts, c.desk.mirror.World.Hosts[name].V)
		}
	}
	for name := range c.desk.mirror.World.Hosts {
		stay := slices.DeleteFunc(c.desk.mirror.World.On(name), func(i pando.Instance) bool { return i.Phase.Leaving() })
		maps.Copy(loads, lifecycle.Loads(stay, func(i pando.Instance) pando.Resources {
			spec, _ := c.desk.mirror.World.SpecOf(i.Service, i.Revision)
			return spec.Resources
		}))
	}
	steps := lifecycle.Rebalance(hosts, loads, blocks, planMax)
	for _, s := range steps {
		out.Next = append(out.Next, moveOf(s))
	}
	return out, steps
}

func moveOf(s lifecycle.Relocation) pando.RebalanceMove {
	return pando.RebalanceMove{Service: s.Service, Instances: s.Count, From: s.From, To: s.To}
}

// movingOf describes the shift of a service, with the instances that have not begun to leave.
func movingOf(w *world.World, svc pando.Service) pando.RebalanceMove {
	m := pando.RebalanceMove{Service: svc.ServiceKey, From: svc.Shift.From, To: svc.Shift.To}
	for _, i := range w.Of(svc.ServiceKey) {
		if svc.Shift.Moves(i) && i.Phase.May(pando.PhaseDraining) {
			m.Instances++
		}
	}
	return m
}
