package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"pando.run/pando"
	"pando.run/pando/world"
)

// adoption brings this host's instances and merges into a restored store. The backup is older than
// they are: it lacks some, and has older steps of others. Adoption ends no instance.
type adoption struct {
	agent   *Agent
	running bool
	// specs are the hashes of the specs before the restore, of the instances whose records have none.
	specs map[pando.InstanceID]string
	// again means that a service came back while the adoption ran. Its spec and its endpoints arrive
	// one after the other.
	again bool
	// adrift holds the instances that run without a record, because the backup has not got their
	// service. The lock of the records guards it.
	adrift map[pando.InstanceID]bool
	// open holds the instances that ran at the restore and of which nothing is known yet. An instance that
	// began later has a record, and ends with it.
	open map[pando.InstanceID]bool
}

// adoptWait is the time between two attempts to write the record of an instance.
const adoptWait = 200 * time.Millisecond

// begin starts the adoption after a snapshot of a restored store, or of a service that came
// back. former is the world before the restore. The caller holds the lock.
func (a *adoption) begin(former *world.World, restored bool) {
	if restored {
		a.open = map[pando.InstanceID]bool{}
		for id := range a.agent.runners {
			a.open[id] = true
		}
	}
	if a.running {
		a.again = true
		return
	}
	a.running = true
	a.specs = map[pando.InstanceID]string{}
	for id, r := range a.agent.runners {
		i := a.agent.current(r).inst
		if spec, known := former.SpecOf(i.Service, i.Revision); i.SpecHash == "" && known {
			a.specs[id] = spec.Hash()
		}
	}
	heads := former.Heads
	a.agent.spawn(func(ctx context.Context) {
		for !a.once(ctx, heads) {
			if pando.Sleep(ctx, a.agent.Clock, adoptWait) != nil {
				return
			}
		}
	})
}

// once writes what the store lacks. It returns false if a part could not be written yet.
func (a *adoption) once(
	ctx context.Context, heads map[pando.ServiceKey]world.Versioned[pando.StateHead],
) bool {
	done := true
	a.agent.mu.Lock()
	a.again = false
	a.agent.mu.Unlock()
	for _, s := range slices.SortedFunc(maps.Keys(heads), pando.ServiceKey.Compare) {
		done = a.head(ctx, heads[s].V) && done
	}
	a.agent.mu.Lock()
	all, orphans := a.agent.everyRunner(), a.orphans()
	all = slices.DeleteFunc(all, func(r *runner) bool { return !a.open[r.id] && !a.adrift[r.id] })
	a.agent.mu.Unlock()
	for _, r := range all {
		done = a.instance(ctx, r) && done
	}
	var left []pando.Instance
	for _, i := range orphans {
		back, ok := a.orphan(ctx, i)
		if done = ok && done; !back {
			left = append(left, i)
		}
	}
	if !done || ctx.Err() != nil {
		return false
	}
	adrift := a.withoutRecord(left)
	if err := a.agent.anchor.Adopted(ctx, adrift); err != nil {
		a.agent.Log.Warn("the store does not show yet what this host brought back", "error", err)
		return false
	}
	a.agent.mu.Lock()
	again := a.again
	if !again {
		a.running = false // not before: a second adoption would begin beside this one
		a.agent.steerAll()
	}
	a.agent.mu.Unlock()
	if again {
		return false
	}
	a.agent.Log.Info("what runs here is in the restored store", "instances", len(all), "adrift", len(adrift))
	return true
}

// withoutRecord returns the last records of the instances that run here without one: those of runners,
// and orphans.
func (a *adoption) withoutRecord(orphans []pando.Instance) (out []pando.Instance) {
	a.agent.mu.Lock()
	defer a.agent.mu.Unlock()
	for id := range a.adrift {
		i := pando.Instance{ID: id}
		if r := a.agent.runners[id]; r != nil {
			i = a.agent.current(r).inst
		}
		out = append(out, i)
	}
	out = append(out, orphans...)
	slices.SortFunc(out, func(x, y pando.Instance) int { return cmp.Compare(x.ID, y.ID) })
	return slices.CompactFunc(out, func(x, y pando.Instance) bool { return x.ID == y.ID })
}

// orphans returns the instances that a former agent started and whose records are lost, each with its
// last record. The caller holds the lock.
func (a *adoption) orphans() (out []pando.Instance) {
	known := a.agent.anchor.Adrift()
	for id, b := range a.agent.found {
		i := pando.Instance{ID: id, Service: b.Service()}
		if n := slices.IndexFunc(known, func(k pando.Instance) bool { return k.ID == id }); n >= 0 {
			i = known[n]
		}
		out = append(out, i)
	}
	return out
}

// orphan writes the record of an instance that a former agent started, if its service is back. The
// record brings its runner.
func (a *adoption) orphan(ctx context.Context, i pando.Instance) (back, ok bool) {
	a.agent.mu.Lock()
	back = a.returned(i) && i.Host == a.agent.Host.Name // false: this agent knows only its name
	a.agent.mu.Unlock()
	if !back {
		return false, true
	}
	return a.write(ctx, i)
}

// head writes the head of a state that this host keeps, if the restored one is older.
func (a *adoption) head(ctx context.Context, mine pando.StateHead) bool {
	a.agent.mu.Lock()
	now, there := a.agent.world.Heads[mine.Service]
	_, known := a.agent.world.Services[mine.Service]
	a.agent.mu.Unlock()
	newer := mine.Host == a.agent.Host.Name && known && mine.Merges > now.V.Merges &&
		(!there || now.V.Host == mine.Host)
	if !newer {
		return true
	}
	_, err := a.agent.commit(ctx, pando.Txn{
		If:  []pando.Condition{{Key: mine.Key(), Modified: now.Modified}},
		Put: []pando.Stored{mine},
	})
	return a.adopted(err, "the newest state of "+mine.Service.String())
}

// returned reports whether the store may have the service and the spec of an instance. A spec that was
// deployed after the restore under the same number is another one. This host may read no spec of a
// service of which the store shows no part here: the store then compares the hashes itself. The caller
// holds the lock.
func (a *adoption) returned(i pando.Instance) bool {
	spec, known := a.agent.world.SpecOf(i.Service, i.Revision)
	_, service := a.agent.world.Services[i.Service]
	return service && (known && i.RunsSpec(spec) || !known && i.SpecHash != "") &&
		i.Phase != pando.PhaseMerged
}

// instance writes the record of an instance that runs here, as it is now.
func (a *adoption) instance(ctx context.Context, r *runner) bool {
	a.agent.mu.Lock()
	i := a.agent.current(r).inst
	i.SpecHash = cmp.Or(i.SpecHash, a.specs[i.ID])
	v, there := a.agent.world.Instances[r.id]
	back, frozen := a.returned(i), a.agent.world.Conceals(r.id)
	a.agent.mu.Unlock()
	switch {
	case frozen:
		return true
	case there:
		if v.V.Phase != i.Phase || v.V.Warm != i.Warm {
			r.post(recordOld{})
		}
		a.landed(r.id)
		return true
	case !back:
		a.setAdrift(r.id)
		return true
	}
	_, ok := a.write(ctx, i)
	return ok
}

// write brings the record of an instance back. It reports whether the record is back, and whether
// another attempt would end alike.
func (a *adoption) write(ctx context.Context, i pando.Instance) (back, ok bool) {
	_, err := a.agent.commit(ctx, pando.Txn{
		If: []pando.Condition{{Key: i.Key()}}, Put: []pando.Stored{i},
	})
	if errors.Is(err, pando.ErrForbidden) || errors.Is(err, pando.ErrInvalid) {
		a.agent.Log.Error("an instance runs on without a record", "instance", i.ID, "error", err)
		a.setAdrift(i.ID)
		return false, true
	}
	if err == nil {
		a.landed(i.ID)
		d := decisionOf(a.agent, i, pando.DecidedRestored,
			"the restored backup had no record of it, and it runs: its record is back", nil)
		_, _ = a.agent.commit(ctx, pando.Txn{Put: []pando.Stored{d}}) // evidence only
	}
	return err == nil, a.adopted(err, fmt.Sprintf("instance %s", i.ID))
}

func (a *adoption) adopted(err error, what string) bool {
	if err != nil && !errors.Is(err, pando.ErrConflict) && !errors.Is(err, pando.ErrFenced) {
		a.agent.Log.Warn("a record is not back in the restored store yet", "record", what, "error", err)
	}
	return err == nil
}

func (a *adoption) setAdrift(i pando.InstanceID) {
	a.agent.mu.Lock()
	defer a.agent.mu.Unlock()
	if !a.open[i] {
		return // it is adrift already, or its service was removed meanwhile
	}
	if a.adrift == nil {
		a.adrift = map[pando.InstanceID]bool{}
	}
	delete(a.open, i)
	a.adrift[i] = true
}

func (a *adoption) landed(i pando.InstanceID) {
	a.agent.mu.Lock()
	defer a.agent.mu.Unlock()
	delete(a.adrift, i)
	delete(a.open, i)
}

// adrifts reports whether an instance without a record stays: the store was restored from a backup
// that is older than the instance. The caller holds the lock.
func (a *adoption) adrifts(i pando.InstanceID) bool {
	return a.running || a.adrift[i] || a.agent.anchor.Drifts(i)
}

// comesBack reports whether a change brings the service of an instance back that runs adrift. The
// caller holds the lock.
func (a *adoption) comesBack(n news) bool {
	back := func(s pando.ServiceKey) bool {
		c := n.services[s]
		return c != nil && (c.service || c.revision)
	}
	for id := range a.adrift {
		if r := a.agent.runners[id]; r != nil && back(r.service) {
			return true
		}
	}
	for id, b := range a.agent.found {
		if back(b.Service()) && a.agent.anchor.Drifts(id) {
			return true
		}
	}
	return false
}

// keeps reports whether an instance of a service runs here without a record. The caller holds the
// lock.
func (a *adoption) keeps(s pando.ServiceKey) bool {
	if (tables{a.agent}).unattached(s) {
		return true
	}
	if _, ok := a.agent.world.Services[s]; ok {
		return false
	}
	return a.running && len(a.agent.crews.of[s]) > 0 ||
		slices.ContainsFunc(a.agent.crews.of[s], func(r *runner) bool { return a.adrift[r.id] })
}

// back returns the services that the store has and of which instances run here without a record. The
// caller holds the lock.
func (a *adoption) back() (out map[pando.ServiceKey]bool) {
	out = map[pando.ServiceKey]bool{}
	note := func(s pando.ServiceKey) {
		if _, there := a.agent.world.Services[s]; there {
			out[s] = true
		}
	}
	for id := range a.adrift {
		if r := a.agent.runners[id]; r != nil {
			note(r.service)
		}
	}
	for id, b := range a.agent.found {
		if a.agent.anchor.Drifts(id) {
			note(b.Service())
		}
	}
	return out
}

// endRemoved ends the instances without a record of services that were there and are removed now: an
// operator wants nothing of them to run. The caller holds the lock.
func (a *adoption) endRemoved(were map[pando.ServiceKey]bool) {
	removed := func(s pando.ServiceKey) bool {
		_, there := a.agent.world.Services[s]
		return were[s] && !there && a.agent.world.Frozen(s) == nil
	}
	var ended []pando.InstanceID
	for _, id := range slices.Sorted(maps.Keys(a.adrift)) {
		if r := a.agent.runners[id]; r != nil && removed(r.service) {
			delete(a.adrift, id)
			r.post(recordGone{})
			ended = append(ended, id)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(a.agent.found)) {
		if b := a.agent.found[id]; removed(b.Service()) && a.agent.anchor.Drifts(id) {
			delete(a.agent.found, id)
			a.agent.spawn(func(ctx context.Context) { a.agent.removeStranger(ctx, b) })
			ended = append(ended, id)
		}
	}
	if len(ended) == 0 {
		return
	}
	a.again = a.running // it may have counted them already
	a.agent.Log.Info("instances without a record end: their service was removed", "instances", ended)
	a.agent.spawn(func(ctx context.Context) {
		for a.agent.anchor.Ended(ctx, ended) != nil {
			if pando.Sleep(ctx, a.agent.Clock, adoptWait) != nil {
				return
			}
		}
	})
}
