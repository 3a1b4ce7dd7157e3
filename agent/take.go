package agent

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"pando.run/pando"
	"pando.run/pando/world"
)

// take applies one commit of the registry to this host. It looks only at the records of the commit.
func (a *Agent) take(b pando.Batch, reset bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if reset {
		a.world = world.New()
	}
	if err := a.world.Apply(b.Changes, b.Revision); err != nil {
		a.Log.Error("a record cannot be read and is left out", "error", err)
	}
	if reset {
		a.reconcile()
	}
	a.follow(b.Changes)
	a.tell(b.Changes)
	if slices.ContainsFunc(b.Changes, func(r pando.Record) bool { return r.Key.Kind() == pando.KindHost }) {
		a.neighbours()
	}
	if reset {
		a.forgetStrangers()
		a.spawn(a.dropStrangers)
	}
	a.applied = max(a.applied, b.Revision)
	a.announce()
}

// learn applies records ahead of the watch. The watch brings them again together with all earlier
// records.
func (a *Agent) learn(records []pando.Record) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.world.Apply(records, 0); err != nil {
		a.Log.Error("a record cannot be read and is left out", "error", err)
	}
	a.follow(records)
	a.announce()
}

// announce wakes every caller that waits for a change of the world. The caller holds the lock.
func (a *Agent) announce() {
	close(a.changed)
	a.changed = make(chan struct{})
}

// follow passes records to the runners of their instances and steers the services that the records
// change. The caller holds the lock.
func (a *Agent) follow(records []pando.Record) {
	stale := map[pando.ServiceKey]bool{}
	for _, r := range records {
		s, _ := r.Key.Service()
		switch r.Key.Kind() {
		case pando.KindService, pando.KindRevision:
			stale[s] = true
		case pando.KindInstance:
			id := instanceOf(r.Key)
			v, ok := a.world.Instances[id]
			if here := ok && v.V.Host == a.Host.Name; here && !a.see(v) {
				continue // the echo of this host's own write
			}
			if runner := a.runners[id]; !ok && runner != nil {
				runner.end()
			}
			stale[s] = true
		}
	}
	for _, s := range slices.SortedFunc(maps.Keys(stale), pando.ServiceKey.Compare) {
		a.publish(s)
	}
}

// instanceOf returns the instance in the key of a record, which is the last part of the key.
func instanceOf(k pando.Key) pando.InstanceID {
	return pando.InstanceID(k[strings.LastIndexByte(string(k), '/')+1:])
}

// see passes a record to the runner of its instance and reports whether it was new. It makes the
// runner if there is none. The caller holds the lock.
func (a *Agent) see(v world.Versioned[pando.Instance]) bool {
	r, known := a.runners[v.V.ID]
	if !known {
		r = newRunner(a, v.V, a.found[v.V.ID])
		delete(a.found, v.V.ID)
		a.enlist(r)
		a.spawn(r.run)
	}
	return r.see(v) || !known
}

// enlist adds a runner; delist removes it. A crew is sorted by instance name. The caller holds the
// lock.
func (a *Agent) enlist(r *runner) {
	a.runners[r.id] = r
	crew := a.crews[r.service]
	at, _ := slices.BinarySearchFunc(crew, r.id, func(o *runner, id pando.InstanceID) int { return cmp.Compare(o.id, id) })
	a.crews[r.service] = slices.Insert(crew, at, r)
}

func (a *Agent) delist(r *runner) {
	delete(a.runners, r.id)
	crew := slices.DeleteFunc(a.crews[r.service], func(o *runner) bool { return o == r })
	if a.crews[r.service] = crew; len(crew) == 0 {
		delete(a.crews, r.service)
		delete(a.rotation, r.service)
		delete(a.waves, r.service)
	}
}

// reconcile runs after the world is replaced. It gives every instance of this host its runner, ends
// the runners of instances without a record, and publishes every service. The caller holds the
// lock.
func (a *Agent) reconcile() {
	for _, i := range a.world.On(a.Host.Name) {
		a.see(a.world.Instances[i.ID])
	}
	for _, r := range a.everyRunner() {
		if _, ok := a.world.Instances[r.id]; !ok {
			r.end()
		}
	}
	for _, id := range slices.Sorted(maps.Keys(a.found)) {
		b := a.found[id]
		delete(a.found, id)
		a.spawn(func(ctx context.Context) {
			a.Log.Warn("a sandbox without a record is removed", "instance", id)
			if err := b.Remove(ctx); err != nil {
				a.Log.Error("remove a sandbox", "instance", id, "error", err)
			}
		})
	}
	for _, s := range a.world.Names() {
		a.publish(s)
	}
}
