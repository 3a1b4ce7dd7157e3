package agent

import (
	"context"
	"errors"
	"time"

	"pando.run/pando"
	"pando.run/pando/state"
)

// trimWait is the default time between two trims of the states of this host.
const trimWait = 5 * time.Minute

// trimStates trims old history from the states of this host every TrimEvery, if there was a push.
func (a *Agent) trimStates(ctx context.Context) {
	last := int64(0)
	for pando.Sleep(ctx, a.Clock, a.TrimEvery) == nil {
		known, merges, ok := a.knownStates()
		if !ok || merges == last {
			continue
		}
		a.settle(ctx)
		done, err := state.Trim(ctx, a.Objects, known, a.Keep, a.Clock.Now())
		if err != nil {
			if !errors.Is(err, context.Canceled) {
				a.Log.Warn("states could not be trimmed; it is tried again", "in", a.TrimEvery, "error", err)
			}
			continue
		}
		last = merges
		a.Log.Info("states trimmed", "objects", done.Objects, "branches", done.Branches)
	}
}

// settle records the position of each branch of this host. The branch of an instance that no longer
// writes then keeps no history alive.
func (a *Agent) settle(ctx context.Context) {
	a.mu.Lock()
	var branches []*state.Branch
	for _, r := range a.everyRunner() {
		if r.branch != nil {
			branches = append(branches, r.branch)
		}
	}
	a.mu.Unlock()
	for _, b := range branches {
		if err := b.Settle(ctx); err != nil && ctx.Err() == nil {
			a.Log.Warn("where a branch is could not be noted; its history stays until it is", "error", err)
		}
	}
}

// knownStates returns the heads of states in the registry. ok is false until the first snapshot
// arrives.
func (a *Agent) knownStates() (known state.Known, merges int64, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	known.Heads = make(map[pando.ServiceKey]pando.ObjectID, len(a.world.Heads))
	for s, h := range a.world.Heads {
		known.Heads[s] = h.V.Commit
		merges += h.V.Merges + 1
	}
	known.Alive = func(i pando.InstanceID) bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		_, ok := a.world.Instances[i]
		return ok
	}
	return known, merges, a.world.Seen > 0
}
