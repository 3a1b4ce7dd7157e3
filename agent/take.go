package agent

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"pando.run/pando"
	"pando.run/pando/agent/crew"
	"pando.run/pando/agent/records"
	"pando.run/pando/agent/runner"
	"pando.run/pando/world"
)

// following returns what this host follows of the store.
func (a *Agent) following() world.Scope {
	return world.Scope{
		Fixed: fixed, Once: once, Wanted: a.scope.wanted, Take: a.take,
		Keys: func(p pando.Key) (keys []pando.Key) {
			a.records.Read(func(w *world.World) { keys = w.Keys(p) })
			return keys
		},
		Left: func(p pando.Key) { a.records.Read(func(w *world.World) { w.Leave(p) }) },
	}
}

// take applies one commit of the registry to this host. It looks only at the records of the commit.
func (a *Agent) take(b pando.Batch, reset bool) {
	a.records.Lock()
	defer a.records.UnlockChanged()
	former, adopting := a.records.World, reset && a.guard.Unadopted()
	back := a.adoption.back(former)
	if reset {
		a.records.World = former.Next()
	}
	if err := a.records.World.Apply(b.Changes, b.Revision); err != nil {
		a.config.Log.Error("a record cannot be read: its service is frozen", "error", err)
	}
	n := crew.Digest(b.Changes)
	if !adopting {
		a.adoption.endRemoved(a.records.World, back)
	}
	if adopting || !reset && a.adoption.comesBack(a.records.World, n) {
		a.adoption.begin(a.records.World, former, adopting)
	}
	if n.Endpoints || reset {
		a.scope.seen = b.Revision
	}
	if reset {
		a.reconcile(a.records.World, former, b.Revision)
	}
	a.follow(a.records.World, n)
	a.crews.Notify(a.records.World, n)
	if n.Hosts {
		a.queue.NeighboursChanged()
		a.presence.Watch(a.records.World)
		a.steerAll(a.records.World)
	}
	if reset {
		a.queue.WithdrawStrangers()
		if records.SeesStates(a.records.World) && !adopting {
			a.spawn(a.branches.DropStrangers)
		}
	}
}

// learn applies records ahead of the watch. The watch brings them again together with all earlier
// records.
func (a *Agent) learn(brought []pando.Record) {
	a.records.Lock()
	defer a.records.UnlockChanged()
	mine := slices.DeleteFunc(slices.Clone(brought), func(r pando.Record) bool {
		s, ok := r.Key.Service()
		return !ok || !strings.HasPrefix(string(r.Key), string(pando.InstancesOn(s, a.config.Host.Name)))
	})
	err := errors.Join(a.records.World.Apply(mine, 0), a.records.Intents.NoteAll(brought))
	if err != nil {
		a.config.Log.Error("a record cannot be read: its service is frozen", "error", err)
	}
	a.follow(a.records.World, crew.Digest(mine))
}

// follow sends records to the runners of their instances and steers the services that the records
// change.
func (a *Agent) follow(w *world.World, n crew.News) {
	for _, s := range n.Names() {
		c := n.Services[s]
		stale := c.Service || c.Revision
		if c.Endpoints || c.Keeper {
			a.scope.rescope(w, s)
		}
		if stale {
			for _, i := range a.scope.unpark(w, s) {
				a.see(w, i)
			}
		}
		if c.Endpoints && a.renewals.renewed(s, w.Endpoints[s].V.Secrets) {
			for _, r := range a.crews.Of[s] {
				r.SecretsChanged()
			}
		}
		if c.Service { // endpoints bring it, and a service may go
			for r := range a.crews.ConfigsOf(w, s) {
				r.ConfigsChanged()
			}
		}
		for _, id := range c.Instances {
			stale = a.followInstance(w, id) || stale
		}
		if stale {
			a.queue.Changed(s)
		}
	}
}

// followInstance sends the record of one instance to its runner. It returns false for the echo of
// this host's own write.
func (a *Agent) followInstance(w *world.World, id pando.InstanceID) (stale bool) {
	v, ok := w.Instances[id]
	if ok && v.V.Host == a.config.Host.Name {
		return a.see(w, v.V)
	}
	if r := a.crews.ByName[id]; !ok && r != nil && !w.Conceals(id) {
		r.RecordGone()
	}
	return true
}

// see sends a record to the runner of its instance and reports whether it was new. It makes the
// runner if there is none. An instance that leaves waits for nothing that a start needs.
func (a *Agent) see(w *world.World, i pando.Instance) bool {
	r, known := a.crews.ByName[i.ID]
	if !known && !i.Phase.Leaving() && !a.scope.complete(w, i) {
		a.scope.parked[i.Service] = true
		return false
	}
	if !known {
		box := a.found[i.ID]
		if b := a.arrivals.Take(w, i.ID); b != nil {
			box = b
		}
		r = runner.New(a.host, i, box, a.askReads.Place())
		delete(a.found, i.ID)
		a.crews.Enlist(w, r)
		a.scope.rescope(w, i.Service)
		a.spawn(r.Run)
		return true
	}
	_, fresh := runner.AfterControl(r.Shown.Instance, i)
	if fresh {
		r.RecordChanged(i)
	}
	return fresh
}

// reconcile runs after the world is replaced. It gives every instance of this host its runner, ends
// the runners of instances without a record, and steers every service. An answer of control may
// have brought a record after the snapshot was read: the store decides about it.
func (a *Agent) reconcile(w *world.World, former *world.World, at pando.StoreRevision) {
	for _, i := range w.On(a.config.Host.Name) {
		a.see(w, i)
	}
	for _, r := range a.crews.AllIn(w) {
		_, ok := w.Instances[r.ID]
		switch {
		case ok, w.Conceals(r.ID), a.adoption.adrifts(w, r.ID):
		case former.Instances[r.ID].Modified > at:
			a.spawn(func(ctx context.Context) { a.lookFor(ctx, r, former.Instances[r.ID].V.Key()) })
		default:
			r.RecordGone()
		}
	}
	for _, id := range slices.Sorted(maps.Keys(a.found)) {
		b := a.found[id]
		if _, parked := w.Instances[id]; parked {
			continue
		}
		if w.Conceals(id) || a.adoption.adrifts(w, id) {
			a.config.Log.Warn("a sandbox stays as it is: its record cannot be read or is lost", "instance", id)
			continue
		}
		delete(a.found, id)
		a.spawn(func(ctx context.Context) {
			a.config.Log.Warn("a sandbox without a record is removed", "instance", id)
			a.removeStranger(ctx, b)
		})
	}
	a.steerAll(w)
}

// lookFor ends a runner if the store has no record of its instance. It asks until the store
// answers.
func (a *Agent) lookFor(ctx context.Context, r *runner.Runner, k pando.Key) {
	for wait := runner.RetryWait; ; wait = min(2*wait, runner.RetryWaitMax) {
		s, err := a.config.Server.Registry.Snapshot(ctx, k)
		if err == nil {
			if !slices.ContainsFunc(s.Records, func(v pando.Record) bool { return v.Key == k }) {
				r.RecordGone()
			}
			return
		}
		if pando.Sleep(ctx, a.config.Clock, wait) != nil {
			return
		}
	}
}

// removeStranger removes a sandbox without a record. It tries again until that has succeeded.
func (a *Agent) removeStranger(ctx context.Context, b pando.Sandbox) {
	for wait := runner.RetryWait; ; wait = min(2*wait, runner.RetryWaitMax) {
		err := b.Remove(ctx)
		if err == nil {
			return
		}
		if wait == runner.RetryWait && ctx.Err() == nil {
			a.config.Log.Error("remove a sandbox: it is tried again", "instance", b.Instance(), "error", err)
		}
		if pando.Sleep(ctx, a.config.Clock, wait) != nil {
			return
		}
	}
}

// secretsSeen is the newest change of the secrets that each service here names. The agent's lock
// guards it.
type secretsSeen map[pando.ServiceKey]pando.StoreRevision

// renewed reports whether the secrets of a service have changed.
func (s secretsSeen) renewed(k pando.ServiceKey, now pando.StoreRevision) bool {
	was := s[k]
	if now == 0 {
		delete(s, k)
		return false
	}
	s[k] = now
	return was != now
}
