package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide"
	"pando.run/pando/lifecycle"
	"pando.run/pando/world"
)

// hostwork carries out the requests of operators about what runs on hosts.
type hostwork struct {
	v *view
	m *members
	o *operators
}

// HostWork returns the requests about what runs on hosts.
func (c *Control) HostWork() pando.HostOperators { return c.work }

// DrainHost implements pando.HostOperators. The mark is a part of the membership and ends with it.
func (h *hostwork) DrainHost(
	ctx context.Context, name pando.HostName, keep time.Duration, by pando.Asker,
) (pando.HostDrainStatus, error) {
	if keep < 0 || keep > pando.HostDrainMax {
		return pando.HostDrainStatus{}, fmt.Errorf("%w: a drain for %s: want at most %s", pando.ErrInvalid,
			keep, pando.HostDrainMax)
	}
	now := h.v.Clock.Now()
	mark := pando.HostDrain{By: by, At: now}
	if keep > 0 {
		mark.Until = now.Add(keep)
	}
	return h.markDrain(ctx, name, &mark)
}

// UndrainHost implements pando.HostOperators.
func (h *hostwork) UndrainHost(
	ctx context.Context, name pando.HostName, _ pando.Asker,
) (pando.HostDrainStatus, error) {
	return h.markDrain(ctx, name, nil)
}

// markDrain writes the mark of a drain, or takes it away.
func (h *hostwork) markDrain(
	ctx context.Context, name pando.HostName, mark *pando.HostDrain,
) (pando.HostDrainStatus, error) {
	for n := 0; ; n++ {
		err := h.putDrain(ctx, name, mark)
		if err == nil {
			return h.HostDrain(ctx, name)
		}
		if !errors.Is(err, pando.ErrConflict) || n == attempts {
			return pando.HostDrainStatus{}, fmt.Errorf("the drain of host %s: %w", name, err)
		}
	}
}

func (h *hostwork) putDrain(ctx context.Context, name pando.HostName, mark *pando.HostDrain) error {
	w, err := h.m.stored(ctx, pando.MemberKey(name))
	if err != nil {
		return err
	}
	m, ok := w.Members[name]
	switch {
	case !ok:
		return fmt.Errorf("%w; `pando hosts` lists those there are", pando.ErrNotFound)
	case mark == nil && m.V.Drain == nil:
		return nil
	}
	t := pando.Txn{If: []pando.Condition{m.If()}}
	m.V.Drain = mark
	t.Put = []pando.Stored{m.V}
	at, err := h.m.commitSurely(ctx, t)
	if err != nil {
		return err
	}
	h.v.mu.Lock()
	defer h.v.mu.Unlock()
	h.v.took(t, at)
	h.v.wake()
	return nil
}

// HostDrain implements pando.HostOperators.
func (h *hostwork) HostDrain(
	_ context.Context, name pando.HostName,
) (st pando.HostDrainStatus, err error) {
	h.v.mu.RLock()
	defer h.v.mu.RUnlock()
	m, member := h.v.world.Members[name]
	if !member {
		return st, fmt.Errorf("host %s: %w; `pando hosts` lists those there are", name, pando.ErrNotFound)
	}
	return hostDrain(h.v, m.V), nil
}

// hostDrain returns what is left on a host. The caller holds the lock.
func hostDrain(c *view, m pando.Member) pando.HostDrainStatus {
	st := pando.HostDrainStatus{Host: m.Name, Drain: m.Drain, Left: []pando.HostLeft{}}
	_, st.Here = c.world.Hosts[m.Name]
	drafts := map[pando.ServiceKey]*decide.Draft{}
	on := c.world.On(m.Name)
	slices.SortStableFunc(on, func(a, b pando.Instance) int {
		return cmp.Or(a.Service.Compare(b.Service), cmp.Compare(a.ID, b.ID))
	})
	for _, i := range on {
		d, made := drafts[i.Service]
		if !made {
			d, _ = decide.About(c.world, i.Service, c.Clock.Now(), c.IDs)
			drafts[i.Service] = d
		}
		left := pando.HostLeft{Service: i.Service, Instance: i.ID}
		if left.Reason, left.Stays = d.Left(i); left.Stays {
			st.Stays++
		}
		if st.Count++; len(st.Left) < pando.HostLeftMax {
			st.Left = append(st.Left, left)
		}
	}
	return st
}

// liftDrains ends the drains whose time is over. It returns the time until the next one ends.
func (h *hostwork) liftDrains(ctx context.Context, fence pando.Fence) time.Duration {
	next := time.Minute
	h.v.mu.RLock()
	var over []pando.Txn
	now := h.v.Clock.Now()
	for name := range h.v.world.Drained {
		at := h.v.world.DrainEnds(name)
		if at.IsZero() {
			continue
		}
		if wait := at.Sub(now); wait > 0 {
			next = min(next, wait)
			continue
		}
		m := h.v.world.Members[name]
		m.V.Drain = nil
		over = append(over, pando.Txn{If: []pando.Condition{m.If()}, Put: []pando.Stored{m.V}})
	}
	h.v.mu.RUnlock()
	for _, t := range over {
		m := t.Put[0].(pando.Member)
		if err := h.v.commit(ctx, fence, t); err != nil {
			h.v.Log.Warn("the end of a drain could not be written", "host", m.Name, "error", err)
			next = min(next, time.Second)
			continue
		}
		h.v.Log.Info("the time of a drain is over: the host takes instances again", "host", m.Name)
	}
	return next
}

// Rebalance implements pando.HostOperators.
func (h *hostwork) Rebalance(
	ctx context.Context, ask pando.RebalanceAsk, by pando.Asker,
) (pando.Rebalance, error) {
	h.v.mu.Lock()
	_, known := h.v.world.Services[ask.Service]
	out, shifts := h.plan(ask)
	h.v.mu.Unlock()
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
		err := h.o.edit(ctx, m.Service, by, func(svc *pando.Service, _ time.Time) (*pando.Decision, error) {
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
func (h *hostwork) plan(ask pando.RebalanceAsk) (out pando.Rebalance, _ []lifecycle.Relocation) {
	out = pando.Rebalance{Moving: []pando.RebalanceMove{}, Next: []pando.RebalanceMove{}}
	var blocks []lifecycle.Block
	for _, s := range h.v.world.Names() {
		svc := h.v.world.Services[s].V
		if svc.Shift != nil {
			out.Moving = append(out.Moving, movingOf(h.v.world, svc))
			continue
		}
		if ask.Service.Name == "" || ask.Service == s {
			if d, ok := decide.About(h.v.world, s, h.v.Clock.Now(), h.v.IDs); ok {
				blocks = append(blocks, d.Blocks()...)
			}
		}
	}
	hosts, loads := []pando.Host{}, map[pando.HostName]lifecycle.Load{}
	for _, name := range h.v.world.HostNames() {
		if decide.TakesNew(h.v.world, name) {
			hosts = append(hosts, h.v.world.Hosts[name].V)
		}
	}
	for name := range h.v.world.Hosts {
		stay := slices.DeleteFunc(h.v.world.On(name), func(i pando.Instance) bool { return i.Phase.Leaving() })
		maps.Copy(loads, lifecycle.Loads(stay, func(i pando.Instance) pando.Resources {
			spec, _ := h.v.world.SpecOf(i.Service, i.Revision)
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
