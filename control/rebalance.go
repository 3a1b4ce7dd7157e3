package control

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"pando.run/pando"
	"pando.run/pando/lifecycle"
	"pando.run/pando/world"
)

// endShift ends the shift of the service once none of its instances has to leave by it, or if it
// cannot go on. What already runs on the other host stays there.
func (d *draft) endShift(due []pando.Instance) {
	s := d.svc.Shift
	if s == nil {
		return
	}
	left := slices.IndexFunc(due, s.Moves)
	why := ""
	switch {
	case left < 0:
		why = fmt.Sprintf("the move from %s to %s is complete", s.From, s.To)
	case !takesNew(d.w, s.To):
		why = fmt.Sprintf("the move to %s is given up: that host takes no new instances", s.To)
	default:
		o := d.obstacle(s.From)
		if o.why == "" || !o.stays {
			o.why = d.failing(max(1, d.bounds().Least))
		}
		if o.why == "" {
			return
		}
		why = fmt.Sprintf("the move to %s is given up: %s", s.To, o.why)
	}
	d.svc.Shift = nil
	d.record(pando.DecidedMove, "", why, nil)
}

// Rebalance implements pando.HostOperators.
func (c *operators) Rebalance(
	ctx context.Context, ask pando.RebalanceAsk, by pando.Asker,
) (pando.Rebalance, error) {
	c.mu.Lock()
	_, known := c.world.Services[ask.Service]
	out, shifts := c.rebalance(ask)
	c.mu.Unlock()
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
		err := c.edit(ctx, m.Service, by, func(svc *pando.Service, _ time.Time) (*pando.Decision, error) {
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

// rebalance returns the moves in progress and the plan of those that follow. The caller holds the
// lock.
func (c *view) rebalance(ask pando.RebalanceAsk) (out pando.Rebalance, _ []lifecycle.Relocation) {
	out = pando.Rebalance{Moving: []pando.RebalanceMove{}, Next: []pando.RebalanceMove{}}
	var blocks []lifecycle.Block
	for _, s := range c.world.Names() {
		svc := c.world.Services[s].V
		if svc.Shift != nil {
			out.Moving = append(out.Moving, movingOf(c.world, svc))
			continue
		}
		if ask.Service.Name == "" || ask.Service == s {
			blocks = append(blocks, c.blocksOf(s)...)
		}
	}
	hosts, loads := []pando.Host{}, map[pando.HostName]lifecycle.Load{}
	for _, h := range c.world.HostNames() {
		if takesNew(c.world, h) {
			hosts = append(hosts, c.world.Hosts[h].V)
		}
	}
	for h := range c.world.Hosts {
		stay := slices.DeleteFunc(c.world.On(h), func(i pando.Instance) bool { return i.Phase.Leaving() })
		maps.Copy(loads, lifecycle.Loads(stay, func(i pando.Instance) pando.Resources {
			spec, _ := c.world.SpecOf(i.Service, i.Revision)
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

// blocksOf returns what a rebalance may move of a service: all instances together with their home, or
// each one of a service that spreads. A service that stops first would be down meanwhile, so it stays.
// The caller holds the lock.
func (c *view) blocksOf(s pando.ServiceKey) (out []lifecycle.Block) {
	l, ok := newLedger(c.world, s, c.Clock.Now(), c.IDs)
	if !ok || c.world.Frozen(s) != nil {
		return nil
	}
	d := &draft{placer: &placer{ledger: l}}
	spec, known := d.spec(d.serving())
	_, pushed := c.world.Heads[s]
	if !known || d.svc.Removing || d.rolling() || d.svc.Rolling > 0 || d.svc.Renew != nil ||
		spec.IsJob() || spec.Stateful() || spec.Ordinals() || len(spec.Volumes)+len(spec.State) > 0 ||
		pushed || d.keeper.Host != "" || d.stopFirst() {
		return nil
	}
	spreads := d.newest().Place.Spread != ""
	counts := map[string]int{}
	block := lifecycle.Block{Service: s, Resources: spec.Resources}
	lacks := d.lacking(spec)
	block.Fits = func(h pando.Host) bool {
		return lifecycle.Unfit(h, d.newest().Place, d.apart, lacks) == ""
	}
	for _, i := range d.crew.all {
		if i.Phase.Leaving() {
			continue
		}
		if !i.Phase.TakesFlows() || i.Move != nil || !d.here(i.Host) {
			return nil // it is on its way, and so is what it replaces
		}
		counts[d.groupOf(i.Host)]++
		block.Instances = append(block.Instances, i.ID)
		block.Hosts = append(block.Hosts, i.Host)
	}
	if len(block.Instances) == 0 {
		return nil
	}
	if !spreads {
		for _, h := range block.Hosts {
			if h != d.svc.Home {
				return nil
			}
		}
		return []lifecycle.Block{block}
	}
	for n := range block.Instances {
		one := block
		one.Instances, one.Hosts = block.Instances[n:n+1], block.Hosts[n:n+1]
		one.Spread, one.GroupOf, one.Counts = true, d.groupOf, counts
		out = append(out, one)
	}
	return out
}
