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
	"pando.run/pando/agent/crew"
	"pando.run/pando/agent/runner"
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
// back. former is the world before the restore.
func (a *adoption) begin(w *world.World, former *world.World, restored bool) {
	if restored {
		a.open = map[pando.InstanceID]bool{}
		for id := range a.agent.crews.ByName {
			a.open[id] = true
		}
	}
	if a.running {
		a.again = true
		return
	}
	a.running = true
	a.specs = map[pando.InstanceID]string{}
	for id, r := range a.agent.crews.ByName {
		i := r.StatusIn(w).Instance
		if spec, known := former.SpecOf(i.Service, i.Revision); i.SpecHash == "" && known {
			a.specs[id] = spec.Hash()
		}
	}
	heads := former.Heads
	a.agent.spawn(func(ctx context.Context) {
		for !a.once(ctx, heads) {
			if pando.Sleep(ctx, a.agent.config.Clock, adoptWait) != nil {
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
	a.agent.records.Lock()
	a.again = false
	a.agent.records.Unlock()
	for _, s := range slices.SortedFunc(maps.Keys(heads), pando.ServiceKey.Compare) {
		done = a.head(ctx, heads[s].V) && done
	}
	a.agent.records.Lock()
	all, orphans := a.agent.crews.AllIn(a.agent.records.World), a.orphans(a.agent.records.World)
	all = slices.DeleteFunc(all, func(r *runner.Runner) bool { return !a.open[r.ID] && !a.adrift[r.ID] })
	a.agent.records.Unlock()
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
	if err := a.agent.guard.Adopted(ctx, adrift); err != nil {
		a.agent.config.Log.Warn("the store does not show yet what this host brought back", "error", err)
		return false
	}
	a.agent.records.Lock()
	again := a.again
	if !again {
		a.running = false // not before: a second adoption would begin beside this one
		a.agent.steerAll(a.agent.records.World)
	}
	a.agent.records.Unlock()
	if again {
		return false
	}
	a.agent.config.Log.Info("what runs here is in the restored store", "instances", len(all), "adrift", len(adrift))
	return true
}

// withoutRecord returns the last records of the instances that run here without one: those of
// runners, and orphans.
func (a *adoption) withoutRecord(orphans []pando.Instance) (out []pando.Instance) {
	a.agent.records.Lock()
	defer a.agent.records.Unlock()
	for id := range a.adrift {
		i := pando.Instance{ID: id}
		if r := a.agent.crews.ByName[id]; r != nil {
			i = r.StatusIn(a.agent.records.World).Instance
		}
		out = append(out, i)
	}
	out = append(out, orphans...)
	slices.SortFunc(out, func(x, y pando.Instance) int { return cmp.Compare(x.ID, y.ID) })
	return slices.CompactFunc(out, func(x, y pando.Instance) bool { return x.ID == y.ID })
}

// orphans returns the instances that a former agent started and whose records are lost, each with
// its last record.
func (a *adoption) orphans(_ *world.World) (out []pando.Instance) {
	known := a.agent.guard.Adrift()
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
	a.agent.records.Lock()
	back = a.returned(a.agent.records.World, i) && i.Host == a.agent.config.Host.Name // false: only its name is known here
	a.agent.records.Unlock()
	if !back {
		return false, true
	}
	return a.write(ctx, i)
}

// head writes the head of a state that this host keeps, if the restored one is older.
func (a *adoption) head(ctx context.Context, mine pando.StateHead) bool {
	a.agent.records.Lock()
	now, there := a.agent.records.World.Heads[mine.Service]
	_, known := a.agent.records.World.Services[mine.Service]
	a.agent.records.Unlock()
	newer := mine.Host == a.agent.config.Host.Name && known && mine.Merges > now.V.Merges &&
		(!there || now.V.Host == mine.Host)
	if !newer {
		return true
	}
	_, err := a.agent.records.Commit(ctx, pando.Txn{
		If:  []pando.Condition{{Key: mine.Key(), Modified: now.Modified}},
		Put: []pando.Stored{mine},
	})
	return a.adopted(err, "the newest state of "+mine.Service.String())
}

// returned reports whether the store may have the service and the spec of an instance. A spec that
// was deployed after the restore under the same number is another one. This host may read no spec
// of a service of which the store shows no part here: the store then compares the hashes itself.
func (a *adoption) returned(w *world.World, i pando.Instance) bool {
	spec, known := w.SpecOf(i.Service, i.Revision)
	_, service := w.Services[i.Service]
	return service && (known && i.RunsSpec(spec) || !known && i.SpecHash != "") &&
		i.Phase != pando.PhaseMerged
}

// instance writes the record of an instance that runs here, as it is now.
func (a *adoption) instance(ctx context.Context, r *runner.Runner) bool {
	a.agent.records.Lock()
	i := r.StatusIn(a.agent.records.World).Instance
	i.SpecHash = cmp.Or(i.SpecHash, a.specs[i.ID])
	v, there := a.agent.records.World.Instances[r.ID]
	back, frozen := a.returned(a.agent.records.World, i), a.agent.records.World.Conceals(r.ID)
	a.agent.records.Unlock()
	switch {
	case frozen:
		return true
	case there:
		if v.V.Phase != i.Phase || v.V.Warm != i.Warm {
			r.RecordOld()
		}
		a.landed(r.ID)
		return true
	case !back:
		a.setAdrift(r.ID)
		return true
	}
	_, ok := a.write(ctx, i)
	return ok
}

// write brings the record of an instance back. It reports whether the record is back, and whether
// another attempt would end alike.
func (a *adoption) write(ctx context.Context, i pando.Instance) (back, ok bool) {
	_, err := a.agent.records.Commit(ctx, pando.Txn{
		If: []pando.Condition{{Key: i.Key()}}, Put: []pando.Stored{i},
	})
	if errors.Is(err, pando.ErrForbidden) || errors.Is(err, pando.ErrInvalid) {
		a.agent.config.Log.Error("an instance runs on without a record", "instance", i.ID, "error", err)
		a.setAdrift(i.ID)
		return false, true
	}
	if err == nil {
		a.landed(i.ID)
		d := a.agent.records.Decision(i, pando.DecidedRestored,
			"the restored backup had no record of it, and it runs: its record is back", nil)
		_, _ = a.agent.records.Commit(ctx, pando.Txn{Put: []pando.Stored{d}}) // evidence only
	}
	return err == nil, a.adopted(err, fmt.Sprintf("instance %s", i.ID))
}

func (a *adoption) adopted(err error, what string) bool {
	if err != nil && !errors.Is(err, pando.ErrConflict) && !errors.Is(err, pando.ErrFenced) {
		a.agent.config.Log.Warn("a record is not back in the restored store yet", "record", what, "error", err)
	}
	return err == nil
}

func (a *adoption) setAdrift(i pando.InstanceID) {
	a.agent.records.Lock()
	defer a.agent.records.Unlock()
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
	a.agent.records.Lock()
	defer a.agent.records.Unlock()
	delete(a.adrift, i)
	delete(a.open, i)
}

// adrifts reports whether an instance without a record stays: the store was restored from a backup
// that is older than the instance.
func (a *adoption) adrifts(_ *world.World, i pando.InstanceID) bool {
	return a.running || a.adrift[i] || a.agent.guard.Drifts(i)
}

// comesBack reports whether a change brings the service of an instance back that runs adrift.
func (a *adoption) comesBack(_ *world.World, n crew.News) bool {
	back := func(s pando.ServiceKey) bool {
		c := n.Services[s]
		return c != nil && (c.Service || c.Revision)
	}
	for id := range a.adrift {
		if r := a.agent.crews.ByName[id]; r != nil && back(r.Service) {
			return true
		}
	}
	for id, b := range a.agent.found {
		if back(b.Service()) && a.agent.guard.Drifts(id) {
			return true
		}
	}
	return false
}

// keeps reports whether an instance of a service runs here without a record.
func (a *adoption) keeps(w *world.World, s pando.ServiceKey) bool {
	if a.agent.unattached(w, s) {
		return true
	}
	if _, ok := w.Services[s]; ok {
		return false
	}
	return a.running && len(a.agent.crews.Of[s]) > 0 ||
		slices.ContainsFunc(a.agent.crews.Of[s], func(r *runner.Runner) bool { return a.adrift[r.ID] })
}

// unattached reports whether an instance of a service runs here whose record, or whose service,
// cannot be read. Only the table in force has its endpoint.
func (a *Agent) unattached(w *world.World, s pando.ServiceKey) bool {
	_, known := w.Services[s]
	for id, b := range a.found {
		if b.Service() == s && (!known || w.Conceals(id)) {
			return true
		}
	}
	return false
}

// back returns the services that the store has and of which instances run here without a record.
func (a *adoption) back(w *world.World) (out map[pando.ServiceKey]bool) {
	out = map[pando.ServiceKey]bool{}
	note := func(s pando.ServiceKey) {
		if _, there := w.Services[s]; there {
			out[s] = true
		}
	}
	for id := range a.adrift {
		if r := a.agent.crews.ByName[id]; r != nil {
			note(r.Service)
		}
	}
	for id, b := range a.agent.found {
		if a.agent.guard.Drifts(id) {
			note(b.Service())
		}
	}
	return out
}

// endRemoved ends the instances without a record of services that were there and are removed now: an
// operator wants nothing of them to run.
func (a *adoption) endRemoved(w *world.World, were map[pando.ServiceKey]bool) {
	removed := func(s pando.ServiceKey) bool {
		_, there := w.Services[s]
		return were[s] && !there && w.Frozen(s) == nil
	}
	var ended []pando.InstanceID
	for _, id := range slices.Sorted(maps.Keys(a.adrift)) {
		if r := a.agent.crews.ByName[id]; r != nil && removed(r.Service) {
			delete(a.adrift, id)
			r.RecordGone()
			ended = append(ended, id)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(a.agent.found)) {
		if b := a.agent.found[id]; removed(b.Service()) && a.agent.guard.Drifts(id) {
			delete(a.agent.found, id)
			a.agent.spawn(func(ctx context.Context) { a.agent.removeStranger(ctx, b) })
			ended = append(ended, id)
		}
	}
	if len(ended) == 0 {
		return
	}
	a.again = a.running // it may have counted them already
	a.agent.config.Log.Info("instances without a record end: their service was removed", "instances", ended)
	a.agent.spawn(func(ctx context.Context) {
		for a.agent.guard.Ended(ctx, ended) != nil {
			if pando.Sleep(ctx, a.agent.config.Clock, adoptWait) != nil {
				return
			}
		}
	})
}
