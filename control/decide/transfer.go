package decide

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"pando.run/pando"
	"pando.run/pando/lifecycle"
	"pando.run/pando/world"
)

// Moved returns the transaction by which an instance is on the host to which it moved.
func (d *Draft) Moved(m pando.Move, a pando.Arrival) (pando.Txn, error) {
	id := m.Instance.ID
	was, ok := d.w.Instances[id]
	if !ok || was.V.Move == nil || *was.V.Move != m.MoveMark || !was.V.Phase.TakesFlows() {
		return pando.Txn{}, fmt.Errorf("%w: instance %s no longer moves; it is %s: %s",
			pando.ErrConflict, id, was.V.Phase, was.V.Reason)
	}
	next := was.V
	next.Host, next.Move, next.Bound, next.IP4, next.IP6 = m.To.Name, nil, "", a.IP4, a.IP6
	next.Reason = "moved from " + string(was.V.Host)
	d.rehouse(was, next)
	return d.txn(), nil
}

// PlanMove checks a move from a host, and chooses the host to which it goes unless one is named.
func (d *Draft) PlanMove(
	id pando.InstanceID, from pando.Host, to pando.HostName,
) (m pando.Move, why string, err error) {
	i := d.w.Instances[id].V
	spec, ok := d.spec(i.Revision)
	if !ok {
		return m, "", fmt.Errorf("the spec of revision %d: %w", i.Revision, pando.ErrNotFound)
	}
	if err := errors.Join(d.w.Frozen(d.svc.ServiceKey), d.mayMove(i, spec)); err != nil {
		return m, "", err
	}
	if !from.Freezes {
		return m, "", fmt.Errorf("%w: host %s sends no instances; `pando doctor` there prints why",
			pando.ErrUnsupported, from.Name)
	}
	host, why, err := d.moveGoal(i, spec, to)
	if err != nil {
		return m, "", err
	}
	return pando.Move{MoveMark: pando.MoveMark{ID: d.ids.Sequential(d.now), From: from.Name},
		Instance: i, Spec: spec, VIP4: d.svc.VIP4, VIP6: d.svc.VIP6, To: host}, why, nil
}

// rehouse gives an instance to another host. A service with a home has no other instance, so its
// home moves too.
func (d *Draft) rehouse(was world.Versioned[pando.Instance], next pando.Instance) {
	d.deletes = append(d.deletes, was.V.Key())
	d.conds[was.V.Key()] = was.If()
	d.conds[next.Key()] = pando.Condition{Key: next.Key()}
	d.puts[next.Key()] = next
	d.crew.put(next)
	if d.svc.Home == was.V.Host {
		d.svc.Home = next.Host
	}
}

// mayMove returns nil if an instance can move, else the cause and the next command.
func (d *Draft) mayMove(i pando.Instance, s pando.Spec) error {
	_, pushed := d.w.Heads[i.Service]
	others := len(d.crew.all) > 1
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
	case len(s.State) > 0 || pushed || d.keeper.Host != "":
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

// moveGoal returns the host of a move with the reason for it.
func (d *Draft) moveGoal(
	i pando.Instance, s pando.Spec, to pando.HostName,
) (pando.Host, string, error) {
	var fit []pando.Host
	if _, live := d.w.Hosts[to]; to != "" && !live {
		return pando.Host{}, "", d.absentGoal(to)
	}
	for _, name := range slices.Sorted(maps.Keys(d.w.Hosts)) {
		h := d.w.Hosts[name].V
		if to != "" && name != to {
			continue
		}
		why := ""
		switch {
		case name == i.Host:
			why = "has it already; `pando hosts` lists the others"
		case Drained(d.w, name):
			why = "is drained; `pando hosts undrain " + string(name) + "` ends that"
		case !TakesNew(d.w, name):
			why = "takes no instances now; `pando hosts` shows why"
		case !h.Freezes:
			why = "takes no instance that moves; `pando doctor` there prints why"
		default:
			why = lifecycle.Unfit(h, d.newest().Place, d.apart, nil)
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
	d.load, d.loadOf = map[pando.HostName]lifecycle.Load{}, ""
	for _, h := range fit {
		d.load[h.Name] = lifecycle.Load(d.w.LoadOn(h.Name))
	}
	h, why, err := lifecycle.Place(fit, d.wish(s, "", d.fellows(i.Revision, false)))
	if err != nil && to != "" {
		err = fmt.Errorf("host %s: %w", to, err)
	}
	return h, why, err
}

// absentGoal returns the reason why no instance moves to a host without an agent.
func (d *Draft) absentGoal(to pando.HostName) error {
	if _, known := d.w.Members[to]; known {
		return fmt.Errorf("%w: host %s is away; `pando hosts` shows since when", pando.ErrUnreachable, to)
	}
	return fmt.Errorf("host %s: %w; `pando hosts` lists them", to, pando.ErrNotFound)
}
