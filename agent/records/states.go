package records

import (
	"context"
	"maps"
	"slices"

	"pando.run/pando"
	"pando.run/pando/agent/branch"
	"pando.run/pando/world"
)

var _ branch.Records = (*Records)(nil)

// Head returns the head of a service's main that this host has last seen.
func (r *Records) Head(s pando.ServiceKey) pando.ObjectID { return r.Main(s).V.Commit }

// Main implements branch.Records.
func (r *Records) Main(s pando.ServiceKey) world.Versioned[pando.StateHead] {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.World.Heads[s]
}

// Newest implements branch.Records.
func (r *Records) Newest(
	ctx context.Context, s pando.ServiceKey,
) (head pando.StateHead, err error) {
	now, err := r.registry.Snapshot(ctx, pando.HeadKey(s))
	if err != nil {
		return head, err
	}
	for _, rec := range now.Records {
		if rec.Key == pando.HeadKey(s) { // and not a longer name's
			err = world.Decode(rec, &head)
		}
	}
	return head, err
}

// Types implements branch.Records.
func (r *Records) Types(s pando.ServiceKey, revision int) map[string]pando.StateType {
	_, spec := r.Service(s, revision)
	return spec.State
}

// Target implements branch.Records. While the spec of the target has not arrived, it returns the
// newest revision that has.
func (r *Records) Target(s pando.ServiceKey) (int, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	svc, ok := r.World.Services[s]
	target := svc.V.Target
	if _, known := r.World.SpecOf(s, target); !known && len(r.World.Revisions[s]) > 0 {
		target = slices.Max(slices.Collect(maps.Keys(r.World.Revisions[s])))
	}
	return target, ok
}

// Alive implements branch.Records.
func (r *Records) Alive(i pando.InstanceID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.World.Instances[i]
	return ok || r.World.Conceals(i)
}

// Heads implements branch.Records.
func (r *Records) Heads() (heads map[pando.ServiceKey]pando.ObjectID, merges int64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	heads = make(map[pando.ServiceKey]pando.ObjectID, len(r.World.Heads))
	for s, h := range r.World.Heads {
		heads[s] = h.V.Commit
		merges += h.V.Merges + 1
	}
	return heads, merges, r.World.Seen > 0 && SeesStates(r.World)
}

// Keeper implements branch.Records.
func (r *Records) Keeper(s pando.ServiceKey) world.Versioned[pando.Keeper] {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.World.Keepers[s]
}

// Keepers implements branch.Records.
func (r *Records) Keepers() []world.Versioned[pando.Keeper] {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.World.Keepers))
}

// Copies implements branch.Records.
func (r *Records) Copies(s pando.ServiceKey) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	spec, _ := r.World.SpecOf(s, r.World.Services[s].V.Target)
	return spec.StateCopies
}

// Reach implements branch.Records.
func (r *Records) Reach(h pando.HostName) (pando.Host, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v, ok := r.World.Hosts[h]
	return v.V, ok
}

// Seated implements branch.Records.
func (r *Records) Seated(s pando.ServiceKey, h pando.HostName) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.World.Endpoints[s].V.On(h)
}

// Seat implements branch.Records.
func (r *Records) Seat(s pando.ServiceKey, i pando.InstanceID) (pando.HostName, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.World.Endpoints[s].V
	for _, t := range e.Seats {
		if t.Instance == i {
			return e.HostOf(t), true
		}
	}
	return "", false
}

// SeesStates reports whether every record that keeps a state alive can be read. Without one of
// them, objects of that state would seem dead.
func SeesStates(w *world.World) bool {
	return w.Blind(pando.KindKeeper) == nil && w.Blind(pando.KindHead) == nil &&
		w.Blind(pando.KindInstance) == nil
}
