package requests

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide"
	"pando.run/pando/world"
)

// recoveries carries out the requests about stateful services.
type recoveries struct{ desk *desk }

// Recover implements pando.Recoveries.
func (c *recoveries) Recover(
	ctx context.Context, s pando.ServiceKey, r pando.Recovery, by pando.Asker,
) (pando.ServiceStatus, error) {
	ask := c.force
	if r.Move != "" {
		ask = c.moveOrdinal
	}
	if (r.Move == "") == (r.ForceFrom == "") {
		return pando.ServiceStatus{}, fmt.Errorf("%w: recover %s: give --force-from or --move",
			pando.ErrInvalid, s)
	}
	if err := ask(ctx, s, cmp.Or(r.Move, r.ForceFrom), by); err != nil {
		return pando.ServiceStatus{}, err
	}
	return c.desk.statuses.Service(ctx, s)
}

// ordinal returns the ordinal that an operator names: db-2, or 2.
func ordinal(w *world.World, svc pando.Service, name string) (int, error) {
	spec, _ := w.SpecOf(svc.ServiceKey, svc.Target)
	if !spec.Stateful() {
		return 0, fmt.Errorf("%w: %s is not stateful: `kind: stateful` in its spec makes it so",
			pando.ErrRefused, svc.ServiceKey)
	}
	if n, err := strconv.Atoi(name); err == nil {
		name = pando.OrdinalName(svc.Name, n+1)
	}
	n, ok := pando.OrdinalOf(svc.Name, name)
	if !ok || svc.Roll.Host(n) == "" {
		return 0, fmt.Errorf("%w: %s has no ordinal %s with volumes; `pando status %[2]s` lists them",
			pando.ErrNotFound, svc.ServiceKey, name)
	}
	return n, nil
}

// force makes an ordinal bootstrap although the positions of others are unknown or newer.
func (c *recoveries) force(
	ctx context.Context, s pando.ServiceKey, name string, by pando.Asker,
) error {
	return c.desk.edit(ctx, s, by, func(svc *pando.Service, _ time.Time) (*pando.Decision, error) {
		n, err := ordinal(c.desk.mirror.World, *svc, name)
		if err != nil {
			return nil, err
		}
		spec, _ := c.desk.mirror.World.SpecOf(s, svc.Target)
		switch h := svc.Roll.Host(n); {
		case len(spec.Hooks.Recover) == 0:
			return nil, fmt.Errorf("%w: %s has no hook recover: its ordinals start without an election",
				pando.ErrRefused, s)
		case slices.ContainsFunc(decide.OnLiveHosts(c.desk.mirror.World, c.desk.mirror.World.Of(s)),
			func(i pando.Instance) bool { return i.Phase.TakesFlows() }):
			return nil, fmt.Errorf("%w: an ordinal of %s serves, and the others join it; `pando ps`",
				pando.ErrRefused, s)
		case !decide.Here(c.desk.mirror.World, h):
			return nil, fmt.Errorf("%w: the volumes of %s are on %s, which is away; choose an ordinal "+
				"of a host that is here", pando.ErrRefused, pando.OrdinalName(s.Name, n), h)
		case svc.Roll.Force == n:
			return nil, nil
		}
		next := *svc.Roll
		next.Force = n
		svc.Roll = &next
		return &pando.Decision{Kind: pando.DecidedRecover, By: by, Reason: fmt.Sprintf(
			"%s bootstraps, and later writes of the others are lost",
			pando.OrdinalName(s.Name, n))}, nil
	})
}

// moveOrdinal gives up the volumes of an ordinal, so that it starts anew on another host. The
// fence: its host has no lease, or is here without the volumes.
func (c *recoveries) moveOrdinal(
	ctx context.Context, s pando.ServiceKey, name string, by pando.Asker,
) error {
	c.desk.mirror.Mu.RLock()
	svc := c.desk.mirror.World.Services[s].V
	svc.ServiceKey = s
	n, err := ordinal(c.desk.mirror.World, svc, name)
	at, isHere := c.desk.mirror.World.Hosts[svc.Roll.Host(n)]
	c.desk.mirror.Mu.RUnlock()
	if err != nil {
		return err
	}
	name = pando.OrdinalName(s.Name, n)
	if isHere {
		kept, err := c.desk.peers.Volumes(ctx, at.V, pando.VolumeQuery{Service: s})
		if err != nil {
			return fmt.Errorf("%w: host %s is here and does not list its volumes: %w",
				pando.ErrUnreachable, at.V.Name, err)
		}
		part := strconv.Itoa(n)
		if slices.ContainsFunc(kept, func(v pando.KeptVolume) bool { return v.Part == part }) {
			return fmt.Errorf("%w: host %s is here and has the volumes of %s; `pando hosts` shows it",
				pando.ErrRefused, at.V.Name, name)
		}
	}
	return c.desk.change(ctx, func(w *world.World, now time.Time) (pando.Txn, error) {
		old := w.Services[s]
		h := old.V.Roll.Host(n)
		if h == "" {
			return pando.Txn{}, nil
		}
		if _, back := w.Hosts[h]; back != isHere {
			return pando.Txn{}, fmt.Errorf("%w: host %s came or went meanwhile: look again",
				pando.ErrConflict, h)
		}
		svc := old.V
		svc.Roll = svc.Roll.With(n, "")
		t := pando.Txn{If: []pando.Condition{old.If()}, Put: []pando.Stored{svc, pando.Decision{
			ID: c.desk.mirror.IDs.Sequential(now), Service: s, Kind: pando.DecidedRecover, By: by, At: now,
			Reason: fmt.Sprintf("%s starts anew on another host; its volumes on %s are given up", name, h),
		}}}
		for _, i := range w.Of(s) { // its agent ends an instance without a record
			if v := w.Instances[i.ID]; i.Ordinal == n && i.Host == h {
				t.If, t.Delete = append(t.If, v.If()), append(t.Delete, i.Key())
			}
		}
		return t, nil
	})
}
