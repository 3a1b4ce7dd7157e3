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

// adoption brings what runs on this host into a restored store. A backup is older than what runs:
// it lacks instances and merges, and has older steps of others. Nothing is ended for that.
type adoption struct {
	running bool
	// adrift holds the instances that run without a record, because the backup has not got their
	// service. The lock of the records guards it.
	adrift map[pando.InstanceID]bool
}

// adoptWait is the time between two attempts to write a record of what runs here.
const adoptWait = 200 * time.Millisecond

// beginAdoption starts the adoption after a snapshot of a restored store, or of a service that came
// back. former is the world before the restore. The caller holds the lock.
func (a *Agent) beginAdoption(former *world.World) {
	if a.adoption.running {
		return
	}
	a.adoption.running = true
	heads := former.Heads
	a.spawn(func(ctx context.Context) {
		for !a.adoptOnce(ctx, heads) {
			if pando.Sleep(ctx, a.Clock, adoptWait) != nil {
				return
			}
		}
	})
}

// adoptOnce writes what the store lacks. It returns false if a part could not be written yet.
func (a *Agent) adoptOnce(
	ctx context.Context, heads map[pando.ServiceKey]world.Versioned[pando.StateHead],
) bool {
	done := true
	for _, s := range slices.SortedFunc(maps.Keys(heads), pando.ServiceKey.Compare) {
		done = a.adoptHead(ctx, heads[s].V) && done
	}
	a.mu.Lock()
	all := a.everyRunner()
	a.mu.Unlock()
	for _, r := range all {
		done = a.adoptInstance(ctx, r) && done
	}
	if !done || ctx.Err() != nil {
		return false
	}
	a.mu.Lock()
	a.adoption.running = false
	adrift := slices.Sorted(maps.Keys(a.adoption.adrift))
	for id := range a.found { // a former agent started it, and its record is lost
		adrift = append(adrift, id)
	}
	a.steerAll()
	a.mu.Unlock()
	if err := a.anchor.Adopted(ctx, adrift); err != nil {
		a.Log.Warn("the store does not show yet what this host brought back", "error", err)
		return false
	}
	a.Log.Info("what runs here is in the restored store", "instances", len(all), "adrift", adrift)
	return true
}

// adoptHead writes the head of a state that this host keeps, if the restored one is older.
func (a *Agent) adoptHead(ctx context.Context, mine pando.StateHead) bool {
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

// adoptInstance writes the record of an instance that runs here, as it is now.
func (a *Agent) adoptInstance(ctx context.Context, r *runner) bool {
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

func (a *Agent) adopted(err error, what string) bool {
	if err != nil && !errors.Is(err, pando.ErrConflict) && !errors.Is(err, pando.ErrFenced) {
		a.Log.Warn("a record is not back in the restored store yet", "record", what, "error", err)
	}
	return err == nil
}

func (a *Agent) setAdrift(i pando.InstanceID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.adoption.adrift == nil {
		a.adoption.adrift = map[pando.InstanceID]bool{}
	}
	a.adoption.adrift[i] = true
}

func (a *Agent) landed(i pando.InstanceID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.adoption.adrift, i)
}

// adrifts reports whether an instance without a record stays: the store was restored from a backup
// that is older than the instance. The caller holds the lock.
func (a *Agent) adrifts(i pando.InstanceID) bool {
	return a.adoption.running || a.adoption.adrift[i] || a.anchor.Drifts(i)
}

// comesBack reports whether a change brings the service of an instance back that runs adrift. The
// caller holds the lock.
func (a *Agent) comesBack(n news) bool {
	for id := range a.adoption.adrift {
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
func (a *Agent) keeps(s pando.ServiceKey) bool {
	if a.unattached(s) {
		return true
	}
	if _, ok := a.world.Services[s]; ok {
		return false
	}
	return a.adoption.running && len(a.crews.of[s]) > 0 ||
		slices.ContainsFunc(a.crews.of[s], func(r *runner) bool { return a.adoption.adrift[r.id] })
}
