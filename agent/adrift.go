package agent

import (
	"context"
	"maps"
	"slices"

	"pando.run/pando"
)

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
