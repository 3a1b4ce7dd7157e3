package agent

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/branch"
	"pando.run/pando/world"
)

// records are the records of the cluster as this host has last seen them. Their lock also guards
// the crews.
type records struct {
	config  *Config
	mu      sync.Mutex
	world   *world.World // of this host's scope
	intents intents
	fence   pando.Fence
	changed chan struct{} // closed and replaced at every change of the world
}

func newRecords(c *Config) *records {
	return &records{
		config: c, world: world.NewScoped(), intents: intents{}, changed: make(chan struct{}),
	}
}

// read calls f with the records of this host. f does not keep them.
func (r *records) read(f func(w *world.World)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(r.world)
}

// wait blocks until ok returns true. It calls ok after every change of the world, with the lock
// held.
func (r *records) wait(ctx context.Context, ok func() bool) error {
	for {
		r.mu.Lock()
		done, news := ok(), r.changed
		r.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-news:
		}
	}
}

// announce wakes every caller that waits for a change of the world. The caller holds the lock.
func (r *records) announce() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// nextChange returns a channel that is closed at the next change of the world.
func (r *records) nextChange() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// awaitChange waits until changed is closed, at most for most.
func (r *records) awaitChange(
	ctx context.Context, changed <-chan struct{}, most time.Duration,
) error {
	timer, stop := r.config.Clock.After(most)
	defer stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-changed:
	case <-timer:
	}
	return nil
}

// commit writes with this host's fence and applies the result to the world at once.
func (r *records) commit(ctx context.Context, t pando.Txn) (pando.StoreRevision, error) {
	r.mu.Lock()
	t.Fence = r.fence
	err := r.world.Spares(t)
	r.mu.Unlock()
	if err != nil {
		return 0, err
	}
	at, err := r.config.Registry.Commit(ctx, t)
	if err != nil {
		return 0, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.took(t, at)
	r.announce()
	return at, nil
}

// took applies an own write to the records that this host follows. The caller holds the lock.
func (r *records) took(t pando.Txn, at pando.StoreRevision) {
	mine := pando.Txn{Delete: t.Delete}
	for _, v := range t.Put {
		switch v := v.(type) {
		case pando.Intent:
			r.intents.note(v, at)
		case pando.Decision: // nothing here reads it
		default:
			mine.Put = append(mine.Put, v)
		}
	}
	r.world.Committed(mine, at)
}

// service returns the record of a service and the spec of one of its revisions.
func (r *records) service(s pando.ServiceKey, revision int) (pando.Service, pando.Spec) {
	r.mu.Lock()
	defer r.mu.Unlock()
	spec, _ := r.world.SpecOf(s, revision)
	return r.world.Services[s].V, spec
}

// Endpoints returns the ports and the instances of a service.
func (r *records) Endpoints(s pando.ServiceKey) (pando.Endpoints, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e, ok := r.world.Endpoints[s]
	return e.V, ok
}

// record returns the record of an instance.
func (r *records) record(i pando.InstanceID) world.Versioned[pando.Instance] {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.world.Instances[i]
}

// head returns the head of a service's main that this host has last seen.
func (r *records) head(s pando.ServiceKey) pando.ObjectID { return mains{r}.Main(s).V.Commit }

// mains gives the branches of this host the records that they need.
type mains struct{ records *records }

var _ branch.Records = mains{}

// Main implements branch.Records.
func (r mains) Main(s pando.ServiceKey) world.Versioned[pando.StateHead] {
	r.records.mu.Lock()
	defer r.records.mu.Unlock()
	return r.records.world.Heads[s]
}

// Newest implements branch.Records.
func (r mains) Newest(
	ctx context.Context, s pando.ServiceKey,
) (head pando.StateHead, err error) {
	now, err := r.records.config.Registry.Snapshot(ctx, pando.HeadKey(s))
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
func (r mains) Types(s pando.ServiceKey, revision int) map[string]pando.StateType {
	_, spec := r.records.service(s, revision)
	return spec.State
}

// Target implements branch.Records. While the spec of the target has not arrived, it returns the
// newest revision that has.
func (r mains) Target(s pando.ServiceKey) (int, bool) {
	r.records.mu.Lock()
	defer r.records.mu.Unlock()
	svc, ok := r.records.world.Services[s]
	target := svc.V.Target
	if _, known := r.records.world.SpecOf(s, target); !known && len(r.records.world.Revisions[s]) > 0 {
		target = slices.Max(slices.Collect(maps.Keys(r.records.world.Revisions[s])))
	}
	return target, ok
}

// Alive implements branch.Records.
func (r mains) Alive(i pando.InstanceID) bool {
	r.records.mu.Lock()
	defer r.records.mu.Unlock()
	_, ok := r.records.world.Instances[i]
	return ok || r.records.world.Conceals(i)
}

// Heads implements branch.Records.
func (r mains) Heads() (heads map[pando.ServiceKey]pando.ObjectID, merges int64, ok bool) {
	r.records.mu.Lock()
	defer r.records.mu.Unlock()
	heads = make(map[pando.ServiceKey]pando.ObjectID, len(r.records.world.Heads))
	for s, h := range r.records.world.Heads {
		heads[s] = h.V.Commit
		merges += h.V.Merges + 1
	}
	return heads, merges, r.records.world.Seen > 0 && r.records.seesStates()
}

// Keeper implements branch.Records.
func (r mains) Keeper(s pando.ServiceKey) world.Versioned[pando.Keeper] {
	r.records.mu.Lock()
	defer r.records.mu.Unlock()
	return r.records.world.Keepers[s]
}

// Keepers implements branch.Records.
func (r mains) Keepers() []world.Versioned[pando.Keeper] {
	r.records.mu.Lock()
	defer r.records.mu.Unlock()
	return slices.Collect(maps.Values(r.records.world.Keepers))
}

// Copies implements branch.Records.
func (r mains) Copies(s pando.ServiceKey) int {
	r.records.mu.Lock()
	defer r.records.mu.Unlock()
	spec, _ := r.records.world.SpecOf(s, r.records.world.Services[s].V.Target)
	return spec.StateCopies
}

// Reach implements branch.Records.
func (r mains) Reach(h pando.HostName) (pando.Host, bool) {
	r.records.mu.Lock()
	defer r.records.mu.Unlock()
	v, ok := r.records.world.Hosts[h]
	return v.V, ok
}

// Seated implements branch.Records.
func (r mains) Seated(s pando.ServiceKey, h pando.HostName) bool {
	r.records.mu.Lock()
	defer r.records.mu.Unlock()
	return r.records.world.Endpoints[s].V.On(h)
}

// Seat implements branch.Records.
func (r mains) Seat(s pando.ServiceKey, i pando.InstanceID) (pando.HostName, bool) {
	r.records.mu.Lock()
	defer r.records.mu.Unlock()
	e := r.records.world.Endpoints[s].V
	for _, t := range e.Seats {
		if t.Instance == i {
			return e.HostOf(t), true
		}
	}
	return "", false
}

// seesStates reports whether every record that keeps a state alive can be read. Without one of
// them, objects of that state would seem dead. The caller holds the lock.
func (r *records) seesStates() bool {
	return r.world.Blind(pando.KindKeeper) == nil &&
		r.world.Blind(pando.KindHead) == nil && r.world.Blind(pando.KindInstance) == nil
}

// News implements branch.Records.
func (r mains) News() <-chan struct{} { return r.records.nextChange() }

// Commit implements branch.Records.
func (r mains) Commit(ctx context.Context, t pando.Txn) (pando.StoreRevision, error) {
	return r.records.commit(ctx, t)
}
