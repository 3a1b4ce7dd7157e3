package control

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"pando.run/pando"
	"pando.run/pando/lifecycle"
	"pando.run/pando/test/failpoint"
	"pando.run/pando/world"
)

// moves carries out the requests to move an instance to another host.
type moves struct{ *operators }

const (
	moveWaitMax   = 10 * time.Minute // for a large program over a slow network
	switchWaitMax = 2 * time.Second  // for the commit that gives the instance to the other host
	landWaitMax   = 10 * time.Second
)

// Migrate implements pando.Operators.
//
//	plan ──► the record says where it goes ──► the new host expects it ──► the old one sends it
//	──► one commit ──► it runs there
//
// One commit deletes the record on the old host and puts it on the new one. It holds only while the
// old record has the mark of this move, which the old host takes away before it continues.
func (c *moves) Migrate(
	ctx context.Context, s pando.ServiceKey, i pando.InstanceID, to pando.HostName, by pando.Asker,
) (st pando.MoveStatus, err error) {
	m, from, why, err := c.plan(s, i, to)
	if err != nil {
		return st, fmt.Errorf("move an instance of %s: %w", s, err)
	}
	st = pando.MoveStatus{Service: s, Instance: m.Instance.ID, From: from.Name, To: m.To.Name,
		Reason: why}
	if err = c.change(ctx, bound(m, m.To.Name)); err == nil {
		err = c.carry(ctx, m, from, &st)
	}
	d := pando.Decision{
		ID: m.ID, Service: s, Instance: st.Instance, Kind: pando.DecidedMove, By: by,
		At: c.Clock.Now(), Inputs: map[string]float64{"bytes": float64(st.Bytes),
			"stopped_bytes": float64(st.StoppedBytes), "stopped_seconds": st.StoppedSeconds},
		Reason: fmt.Sprintf("from %s to %s, which is %s: %d bytes, and it was stopped for %.0f ms",
			st.From, st.To, why, st.Bytes, st.StoppedSeconds*1000),
	}
	if err != nil {
		// The record says where the instance goes until another move says so: it permits little.
		rest, cancel := context.WithTimeout(context.WithoutCancel(ctx), switchWaitMax)
		_ = c.change(rest, bound(m, ""))
		cancel()
		outcome := "it failed, and the instance stays"
		switch {
		case errors.Is(err, errUnknown):
			outcome = "whether it moved is unknown"
		case errors.Is(err, errSilent):
			outcome = "it moved, and the new host does not report that it runs"
		}
		d.Reason = fmt.Sprintf("from %s to %s: %s: %s", st.From, st.To, outcome, cut(err.Error()))
	}
	c.rememberEnd(ctx, d)
	return st, err
}

// bound returns the edit that notes in the record of an instance the host that it moves to, which
// then may have its files from other hosts. "" takes the note away.
func bound(m pando.Move, to pando.HostName) func(*world.World, time.Time) (pando.Txn, error) {
	return func(w *world.World, _ time.Time) (pando.Txn, error) {
		was, ok := w.Instances[m.Instance.ID]
		if !ok || was.V.Host != m.From {
			return pando.Txn{}, fmt.Errorf("%w: instance %s left host %s meanwhile", pando.ErrConflict,
				m.Instance.ID, m.From)
		}
		next := was.V
		next.Bound = to
		return pando.Txn{If: []pando.Condition{was.If()}, Put: []pando.Stored{next}}, nil
	}
}

// errSilent is the end of a move whose new host has the instance and does not report it.
var errSilent = errors.New("which does not report that it runs")

// carry moves the instance and completes the status.
func (c *moves) carry(
	ctx context.Context, m pando.Move, from pando.Host, st *pando.MoveStatus,
) error {
	ctx, cancel := context.WithTimeout(ctx, moveWaitMax)
	defer cancel()
	if err := c.Peers.Expect(ctx, m.To, m); err != nil {
		if errors.Is(err, pando.ErrUnavailable) {
			err = fmt.Errorf("%w; `pando hosts` shows the hosts that answer", err)
		}
		return err
	}
	a, err := c.Peers.Depart(ctx, from, m)
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), switchWaitMax)
		defer cancel()
		_ = c.Peers.GiveUp(ctx, m.To, m.ID) // that host asks as well
		return err
	}
	st.Bytes, st.StoppedBytes, st.StoppedSeconds = a.Bytes, a.StoppedBytes, a.StoppedSeconds
	began := c.Clock.Now()
	// A caller that leaves now leaves the program stopped until the old host has the mark away.
	ctx, cancelRest := context.WithTimeout(context.WithoutCancel(ctx), landWaitMax)
	defer cancelRest()
	failpoint.Hit("move agreed")
	if err := c.give(ctx, m, a); err != nil {
		return err
	}
	failpoint.Hit("move given")
	if _, err := c.Peers.Landed(ctx, m.To, m.ID); err != nil {
		return fmt.Errorf("the instance belongs to %s, %w; `pando ps %s` shows it: %w", m.To.Name,
			errSilent, m.Instance.Service.Name, err)
	}
	st.StoppedSeconds += c.Clock.Now().Sub(began).Seconds()
	return nil
}

// give gives the instance to its new host in one commit.
func (c *moves) give(ctx context.Context, m pando.Move, a pando.Arrival) error {
	ctx, cancel := context.WithTimeout(ctx, switchWaitMax)
	defer cancel()
	id, s := m.Instance.ID, m.Instance.Service
	for {
		c.mu.Lock()
		news := c.changed
		now := c.world.Instances[id].V.Move
		c.mu.Unlock()
		if now != nil && *now == m.MoveMark {
			break // the old host wrote it before it answered, and the watch may be later
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: the instance no longer moves", pando.ErrConflict)
		case <-news:
		}
	}
	return c.change(ctx, func(w *world.World, now time.Time) (pando.Txn, error) {
		was, ok := w.Instances[id]
		l, known := newLedger(w, s, now, c.IDs)
		if !ok || !known || was.V.Move == nil || *was.V.Move != m.MoveMark ||
			!was.V.Phase.TakesFlows() {
			return pando.Txn{}, fmt.Errorf("%w: instance %s no longer moves; it is %s: %s",
				pando.ErrConflict, id, was.V.Phase, was.V.Reason)
		}
		next := was.V
		next.Host, next.Move, next.Bound, next.IP4, next.IP6 = m.To.Name, nil, "", a.IP4, a.IP6
		next.Reason = "moved from " + string(was.V.Host)
		l.rehouse(was, next)
		return l.txn(), nil
	})
}

// rehouse gives an instance to another host. A service with a home has no other instance, so its
// home moves too.
func (l *ledger) rehouse(was world.Versioned[pando.Instance], next pando.Instance) {
	l.deletes = append(l.deletes, was.V.Key())
	l.conds[was.V.Key()] = was.If()
	l.conds[next.Key()] = pando.Condition{Key: next.Key()}
	l.puts[next.Key()] = next
	l.crew.put(next)
	if l.svc.Home == was.V.Host {
		l.svc.Home = next.Host
	}
}

// plan checks a move, and chooses the host without one.
func (c *moves) plan(
	s pando.ServiceKey, i pando.InstanceID, to pando.HostName,
) (m pando.Move, from pando.Host, why string, err error) {
	on, from, err := c.visited(s, i)
	if err != nil {
		return m, from, "", err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	inst, svc := c.world.Instances[on].V, c.world.Services[s].V
	l, known := newLedger(c.world, s, c.Clock.Now(), c.IDs)
	spec, ok := c.world.SpecOf(s, inst.Revision)
	if !known || !ok {
		return m, from, "", fmt.Errorf("the spec of revision %d: %w", inst.Revision, pando.ErrNotFound)
	}
	p := leaver{&placer{ledger: l}}
	if err := errors.Join(c.world.Frozen(s), p.mayMove(inst, spec)); err != nil {
		return m, from, "", err
	}
	if !from.Freezes {
		return m, from, "", fmt.Errorf("%w: host %s sends no instances; `pando doctor` there prints why",
			pando.ErrUnsupported, from.Name)
	}
	host, why, err := p.goal(inst, spec, to)
	if err != nil {
		return m, from, "", err
	}
	m = pando.Move{MoveMark: pando.MoveMark{ID: c.IDs.Sequential(l.now), From: from.Name},
		Instance: inst, Spec: spec, VIP4: svc.VIP4, VIP6: svc.VIP6, To: host}
	return m, from, why, nil
}

// leaver chooses where an instance moves.
type leaver struct{ *placer }

// mayMove returns nil if an instance can move, else the cause and the next command.
func (p leaver) mayMove(i pando.Instance, s pando.Spec) error {
	_, pushed := p.w.Heads[i.Service]
	others := len(p.crew.all) > 1
	cause, next := "", "`pando scale` starts others beside it"
	switch {
	case !i.Phase.TakesFlows() || i.Run != nil:
		return fmt.Errorf("%w: instance %s is %s; `pando ps %s` shows when it serves",
			pando.ErrConflict, i.ID, i.Phase, i.Service.Name)
	case i.Move != nil:
		return fmt.Errorf("%w: instance %s moves already", pando.ErrConflict, i.ID)
	case s.Image.Digest != "":
		cause, next = "it has an image, which cannot be frozen", "run the program without an image"
	case len(s.Endpoints) > 0:
		cause, next = "its endpoint is a machine outside the cluster", "move that machine"
	case s.IsVM():
		cause = "it is a virtual machine, which cannot be frozen"
	case s.Stateful() || s.Ordinals() || len(s.Volumes) > 0:
		cause, next = "its volumes are on its host", "`pando why --pending` shows where it may run"
	case len(s.State) > 0 || pushed || p.keeper.Host != "":
		cause = "its state is on its host"
	case len(s.Grants) > 0:
		cause = "its grants are parts of its host"
	case len(s.Secrets)+len(s.StoredSecrets)+len(s.Configs) > 0:
		cause = "its secrets and configs are on its host"
	case s.Place.Spread == "" && others:
		cause, next = "all instances of the service are on one host", "write `place: {spread: host}`"
	default:
		return nil
	}
	return fmt.Errorf("%w: instance %s: %s; %s", pando.ErrRefused, i.ID, cause, next)
}

// goal returns the host of a move with the reason for it.
func (p leaver) goal(
	i pando.Instance, s pando.Spec, to pando.HostName,
) (pando.Host, string, error) {
	var fit []pando.Host
	if _, live := p.w.Hosts[to]; to != "" && !live {
		return pando.Host{}, "", p.absent(to)
	}
	for _, name := range slices.Sorted(maps.Keys(p.w.Hosts)) {
		h := p.w.Hosts[name].V
		if to != "" && name != to {
			continue
		}
		why := ""
		switch {
		case name == i.Host:
			why = "has it already; `pando hosts` lists the others"
		case drained(p.w, name):
			why = "is drained; `pando hosts undrain " + string(name) + "` ends that"
		case !takesNew(p.w, name):
			why = "takes no instances now; `pando hosts` shows why"
		case !h.Freezes:
			why = "takes no instance that moves; `pando doctor` there prints why"
		default:
			why = lifecycle.Unfit(h, p.newest().Place, p.apart, nil)
			if why != "" {
				why += "; `pando why " + string(s.Name) + " --pending` explains each host"
			}
		}
		if why == "" {
			fit = append(fit, h)
		} else if to != "" {
			return h, "", fmt.Errorf("%w: host %s %s", pando.ErrRefused, to, why)
		}
	}
	if len(fit) == 0 {
		return pando.Host{}, "", fmt.Errorf("%w: no other host takes it; `pando hosts` lists them",
			pando.ErrNoRoom)
	}
	p.load, p.loadOf = map[pando.HostName]lifecycle.Load{}, ""
	for _, h := range fit {
		p.load[h.Name] = lifecycle.Load(p.w.LoadOn(h.Name))
	}
	h, why, err := lifecycle.Place(fit, p.wish(s, "", p.fellows(i.Revision, false)))
	if err != nil && to != "" {
		err = fmt.Errorf("host %s: %w", to, err)
	}
	return h, why, err
}

// absent returns the reason why no instance moves to a host without an agent.
func (p leaver) absent(to pando.HostName) error {
	if _, known := p.w.Members[to]; known {
		return fmt.Errorf("%w: host %s is away; `pando hosts` shows since when", pando.ErrUnreachable, to)
	}
	return fmt.Errorf("host %s: %w; `pando hosts` lists them", to, pando.ErrNotFound)
}
