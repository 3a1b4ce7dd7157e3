package agent

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"pando.run/pando"
	"pando.run/pando/world"
)

// news is one commit as this host reads it, in one pass over its records.
type news struct {
	endpoints bool // of a service changed
	hosts     bool // a host or a member joined, changed or left
	services  map[pando.ServiceKey]*change
}

// change is the part of a commit that concerns one service.
type change struct {
	instances []pando.InstanceID // in the order of the commit
	service   bool               // its record
	revision  bool               // one of its revisions
	head      bool               // its main
	keeper    bool               // the hosts of its state
	endpoints bool               // its endpoints, which bring its record
}

func digest(records []pando.Record) news {
	n := news{services: map[pando.ServiceKey]*change{}}
	for _, r := range records {
		s, ok := r.Key.Service()
		if !ok {
			n.hosts = n.hosts || r.Key.Kind() == pando.KindHost || r.Key.Kind() == pando.KindMember
			continue
		}
		c := n.services[s]
		if c == nil {
			c = &change{}
			n.services[s] = c
		}
		switch r.Key.Kind() {
		case pando.KindInstance:
			c.instances = append(c.instances, instanceOf(r.Key))
		case pando.KindService:
			c.service = true
		case pando.KindEndpoints:
			c.endpoints, c.service, n.endpoints = true, true, true
		case pando.KindRevision:
			c.revision = true
		case pando.KindHead:
			c.head = true
		case pando.KindKeeper:
			c.keeper = true
		}
	}
	return n
}

// names returns the services of a commit in order.
func (n news) names() []pando.ServiceKey {
	return slices.SortedFunc(maps.Keys(n.services), pando.ServiceKey.Compare)
}

// instanceOf returns the instance in the key of a record, which is the last part of the key.
func instanceOf(k pando.Key) pando.InstanceID {
	return pando.InstanceID(k[strings.LastIndexByte(string(k), '/')+1:])
}

// take applies one commit of the registry to this host. It looks only at the records of the commit.
func (a *Agent) take(b pando.Batch, reset bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	former, adopting, back := a.world, reset && a.anchor.Unadopted(), a.adoption.back()
	if reset {
		a.world = former.Next()
	}
	if err := a.world.Apply(b.Changes, b.Revision); err != nil {
		a.Log.Error("a record cannot be read: its service is frozen", "error", err)
	}
	n := digest(b.Changes)
	if !adopting {
		a.adoption.endRemoved(back)
	}
	if adopting || !reset && a.adoption.comesBack(n) {
		a.adoption.begin(former, adopting)
	}
	if n.endpoints || reset {
		a.scope.seen = b.Revision
	}
	if reset {
		a.reconcile(former, b.Revision)
	}
	a.follow(n)
	a.notify(n)
	if n.hosts {
		a.steering.NeighboursChanged()
		a.presence.watch()
		a.steerAll()
	}
	if reset {
		a.steering.WithdrawStrangers()
		if a.seesStates() && !adopting {
			a.spawn(a.branches.DropStrangers)
		}
	}
	a.announce()
}

// learn applies records ahead of the watch. The watch brings them again together with all earlier
// records.
func (a *Agent) learn(records []pando.Record) {
	a.mu.Lock()
	defer a.mu.Unlock()
	mine := slices.DeleteFunc(slices.Clone(records), func(r pando.Record) bool {
		s, ok := r.Key.Service()
		return !ok || !strings.HasPrefix(string(r.Key), string(pando.InstancesOn(s, a.Host.Name)))
	})
	err := errors.Join(a.world.Apply(mine, 0), a.intents.noteAll(records))
	if err != nil {
		a.Log.Error("a record cannot be read: its service is frozen", "error", err)
	}
	a.follow(digest(mine))
	a.announce()
}

// follow sends records to the runners of their instances and steers the services that the records
// change. The caller holds the lock.
func (a *Agent) follow(n news) {
	for _, s := range n.names() {
		c := n.services[s]
		stale := c.service || c.revision
		if c.endpoints || c.keeper {
			a.scope.rescope(s)
		}
		if stale {
			a.scope.unpark(s)
		}
		if c.endpoints && a.renewals.renewed(s, a.world.Endpoints[s].V.Secrets) {
			for _, r := range a.crews.of[s] {
				r.post(secretsChanged{})
			}
		}
		if c.service { // endpoints bring it, and a service may go
			for r := range a.sources[s] {
				r.post(configsChanged{})
			}
		}
		for _, id := range c.instances {
			stale = a.followInstance(id) || stale
		}
		if stale {
			a.steering.Changed(s)
		}
	}
}

// followInstance sends the record of one instance to its runner. It returns false for the echo of
// this host's own write. The caller holds the lock.
func (a *Agent) followInstance(id pando.InstanceID) (stale bool) {
	v, ok := a.world.Instances[id]
	if ok && v.V.Host == a.Host.Name {
		return a.see(v.V)
	}
	if r := a.runners[id]; !ok && r != nil && !a.world.Conceals(id) {
		r.post(recordGone{})
	}
	return true
}

// see sends a record to the runner of its instance and reports whether it was new. It makes the
// runner if there is none. An instance that leaves waits for nothing that a start needs. The caller
// holds the lock.
func (a *Agent) see(i pando.Instance) bool {
	r, known := a.runners[i.ID]
	if !known && !i.Phase.Leaving() && !a.scope.complete(i) {
		a.scope.parked[i.Service] = true
		return false
	}
	if !known {
		box := a.found[i.ID]
		if b := a.arrivals.take(i.ID); b != nil {
			box = b
		}
		r = newRunner(a, i, box)
		delete(a.found, i.ID)
		a.enlist(r)
		a.scope.rescope(i.Service)
		a.spawn(r.run)
		return true
	}
	_, fresh := controlled(r.shown.inst, i)
	if fresh {
		r.post(recordChanged{i})
	}
	return fresh
}

// steerAll queues every service. The caller holds the lock.
func (a *Agent) steerAll() {
	for _, s := range a.world.Names() {
		a.steering.Changed(s)
	}
}

// reconcile runs after the world is replaced. It gives every instance of this host its runner, ends
// the runners of instances without a record, and steers every service. An answer of control may
// have brought a record after the snapshot was read: the store decides about it. The caller holds
// the lock.
func (a *Agent) reconcile(former *world.World, at pando.StoreRevision) {
	for _, i := range a.world.On(a.Host.Name) {
		a.see(i)
	}
	for _, r := range a.everyRunner() {
		_, ok := a.world.Instances[r.id]
		switch {
		case ok, a.world.Conceals(r.id), a.adoption.adrifts(r.id):
		case former.Instances[r.id].Modified > at:
			a.spawn(func(ctx context.Context) { a.lookFor(ctx, r, former.Instances[r.id].V.Key()) })
		default:
			r.post(recordGone{})
		}
	}
	for _, id := range slices.Sorted(maps.Keys(a.found)) {
		b := a.found[id]
		if _, parked := a.world.Instances[id]; parked {
			continue
		}
		if a.world.Conceals(id) || a.adoption.adrifts(id) {
			a.Log.Warn("a sandbox stays as it is: its record cannot be read or is lost", "instance", id)
			continue
		}
		delete(a.found, id)
		a.spawn(func(ctx context.Context) {
			a.Log.Warn("a sandbox without a record is removed", "instance", id)
			a.removeStranger(ctx, b)
		})
	}
	a.steerAll()
}

// lookFor ends a runner if the store has no record of its instance. It asks until the store
// answers.
func (a *Agent) lookFor(ctx context.Context, r *runner, k pando.Key) {
	for wait := retryWait; ; wait = min(2*wait, retryWaitMax) {
		s, err := a.Registry.Snapshot(ctx, k)
		if err == nil {
			if !slices.ContainsFunc(s.Records, func(v pando.Record) bool { return v.Key == k }) {
				r.post(recordGone{})
			}
			return
		}
		if pando.Sleep(ctx, a.Clock, wait) != nil {
			return
		}
	}
}

// removeStranger removes a sandbox without a record. It tries again until that has succeeded.
func (a *Agent) removeStranger(ctx context.Context, b pando.Sandbox) {
	for wait := retryWait; ; wait = min(2*wait, retryWaitMax) {
		err := b.Remove(ctx)
		if err == nil {
			return
		}
		if wait == retryWait && ctx.Err() == nil {
			a.Log.Error("remove a sandbox: it is tried again", "instance", b.Instance(), "error", err)
		}
		if pando.Sleep(ctx, a.Clock, wait) != nil {
			return
		}
	}
}
