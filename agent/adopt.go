package agent

import (
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
	*Agent
	running bool
	// adrift holds the instances that run without a record, because the backup has not got their
	// service. The lock of the records guards it.
	adrift map[pando.InstanceID]bool
}

// adoptWait is the time between two attempts to write the record of an instance.
const adoptWait = 200 * time.Millisecond

// begin starts the adoption after a snapshot of a restored store, or of a service that came
// back. former is the world before the restore. The caller holds the lock.
func (a *adoption) begin(former *world.World) {
	if a.running {
		return
	}
	a.running = true
	heads := former.Heads
	a.spawn(func(ctx context.Context) {
		for !a.once(ctx, heads) {
			if pando.Sleep(ctx, a.Clock, adoptWait) != nil {
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
	for _, s := range slices.SortedFunc(maps.Keys(heads), pando.ServiceKey.Compare) {
		done = a.head(ctx, heads[s].V) && done
	}
	a.mu.Lock()
	all := a.everyRunner()
	a.mu.Unlock()
	for _, r := range all {
		done = a.instance(ctx, r) && done
	}
	if !done || ctx.Err() != nil {
		return false
	}
	a.mu.Lock()
	adrift := slices.Sorted(maps.Keys(a.adrift))
	for id := range a.found { // a former agent started it, and its record is lost
		adrift = append(adrift, id)
	}
	a.mu.Unlock()
	if err := a.anchor.Adopted(ctx, adrift); err != nil {
		a.Log.Warn("the store does not show yet what this host brought back", "error", err)
		return false
	}
	a.mu.Lock()
	a.running = false // not before: a second adoption would begin beside this one
	a.steerAll()
	a.mu.Unlock()
	a.Log.Info("what runs here is in the restored store", "instances", len(all), "adrift", adrift)
	return true
}

// head writes the head of a state that this host keeps, if the restored one is older.
func (a *adoption) head(ctx context.Context, mine pando.StateHead) bool {
	a.mu.Lock()
	now, there := a.world.Heads[mine.Service]
	_, known := a.world.Services[mine.Service]
	a.mu.Unlock()
	newer := mine.Host == a.Host.Name && known && mine.Merges > now.V.Merges &&
		(!there || now.V.Host == mine.Host)
	if !newer {
		return true
	}
	_, err := a.commit(ctx, pando.Txn{
		If:  []pando.Condition{{Key: mine.Key(), Modified: now.Modified}},
		Put: []pando.Stored{mine},
	})
	return a.adopted(err, "the newest state of "+mine.Service.String())
}

// instance writes the record of an instance that runs here, as it is now.
func (a *adoption) instance(ctx context.Context, r *runner) bool {
	a.mu.Lock()
	i := a.current(r).inst
	v, there := a.world.Instances[r.id]
	_, spec := a.world.SpecOf(i.Service, i.Revision)
	_, service := a.world.Services[i.Service]
	known, frozen := spec && service, a.world.Conceals(r.id)
	a.mu.Unlock()
	switch {
	case frozen:
		return true
	case there:
		if v.V.Phase != i.Phase || v.V.Warm != i.Warm {
			r.post(recordOld{})
		}
		a.landed(r.id)
		return true
	case !known || i.Phase == pando.PhaseMerged:
		a.setAdrift(r.id)
		return true
	}
	_, err := a.commit(ctx, pando.Txn{
		If: []pando.Condition{{Key: i.Key()}}, Put: []pando.Stored{i},
	})
	if errors.Is(err, pando.ErrForbidden) || errors.Is(err, pando.ErrInvalid) {
		a.Log.Error("an instance runs on without a record", "instance", r.id, "error", err)
		a.setAdrift(r.id)
		return true
	}
	if err == nil {
		a.landed(r.id)
		d := a.decision(r, pando.DecidedRestored,
			"the restored backup had no record of it, and it runs: its record is back", nil)
		_, _ = a.commit(ctx, pando.Txn{Put: []pando.Stored{d}}) // evidence only
	}
	return a.adopted(err, fmt.Sprintf("instance %s", r.id))
}

func (a *adoption) adopted(err error, what string) bool {
	if err != nil && !errors.Is(err, pando.ErrConflict) && !errors.Is(err, pando.ErrFenced) {
		a.Log.Warn("a record is not back in the restored store yet", "record", what, "error", err)
	}
	return err == nil
}

func (a *adoption) setAdrift(i pando.InstanceID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.adrift == nil {
		a.adrift = map[pando.InstanceID]bool{}
	}
	a.adrift[i] = true
}

func (a *adoption) landed(i pando.InstanceID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.adrift, i)
}

// adrifts reports whether an instance without a record stays: the store was restored from a backup
// that is older than the instance. The caller holds the lock.
func (a *adoption) adrifts(i pando.InstanceID) bool {
	return a.running || a.adrift[i] || a.anchor.Drifts(i)
}

// comesBack reports whether a change brings the service of an instance back that runs adrift. The
// caller holds the lock.
func (a *adoption) comesBack(n news) bool {
	for id := range a.adrift {
		if r := a.runners[id]; r != nil {
			if c := n.services[r.service]; c != nil && (c.service || c.revision) {
				return true
			}
		}
	}
	return false
}

// keeps reports whether an instance of a service runs here without a record. The caller holds the
// lock.
func (a *adoption) keeps(s pando.ServiceKey) bool {
	if (tables{a.Agent}).unattached(s) {
		return true
	}
	if _, ok := a.world.Services[s]; ok {
		return false
	}
	return a.running && len(a.crews.of[s]) > 0 ||
		slices.ContainsFunc(a.crews.of[s], func(r *runner) bool { return a.adrift[r.id] })
}
