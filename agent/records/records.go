// Package records holds the records of the cluster as one host has last seen them, and writes those
// of its instances.
//
// Its lock also guards what other rooms of the agent derive from the records. It never decides what
// a host follows: the agent brings the records.
package records

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/world"
)

// Config is what the records of a host need.
type Config struct {
	Host     pando.HostName
	Registry pando.Registry
	Clock    pando.Clock
	IDs      pando.IDs
	Log      *slog.Logger
}

// Records are the records of the cluster as this host has last seen them. A caller that reads World
// or Intents holds the lock.
type Records struct {
	host     pando.HostName
	registry pando.Registry
	clock    pando.Clock
	ids      pando.IDs
	log      *slog.Logger

	mu      sync.Mutex
	World   *world.World // of this host's scope
	Intents Intents
	fence   pando.Fence
	changed chan struct{} // closed and replaced at every change of the world
}

// New returns records without a content.
func New(c Config) *Records {
	return &Records{
		host: c.Host, registry: c.Registry, clock: c.Clock, ids: c.IDs, log: c.Log,
		World: world.NewScoped(), Intents: Intents{}, changed: make(chan struct{}),
	}
}

// Lock takes the lock of the records.
func (r *Records) Lock() { r.mu.Lock() }

// Unlock gives the lock back.
func (r *Records) Unlock() { r.mu.Unlock() }

// UnlockChanged gives the lock back and wakes every caller that waits for a change of the world.
func (r *Records) UnlockChanged() {
	r.announce()
	r.mu.Unlock()
}

// Join keeps the fence of this host's newest join. Commit writes with it.
func (r *Records) Join(f pando.Fence) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fence = f
}

// Fence returns the fence of this host's newest join.
func (r *Records) Fence() pando.Fence {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fence
}

// Read calls f with the records of this host. f does not keep them.
func (r *Records) Read(f func(w *world.World)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(r.World)
}

// Wait blocks until ok returns true. It calls ok after every change of the world, with the lock
// held.
func (r *Records) Wait(ctx context.Context, ok func() bool) error {
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

// announce wakes every caller that waits for a change of the world.
func (r *Records) announce() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// News returns a channel that is closed at the next change of the world.
func (r *Records) News() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed
}

// AwaitChange waits until changed is closed, at most for most.
func (r *Records) AwaitChange(
	ctx context.Context, changed <-chan struct{}, most time.Duration,
) error {
	timer, stop := r.clock.After(most)
	defer stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-changed:
	case <-timer:
	}
	return nil
}

// Commit writes with this host's fence and applies the result to the world at once.
func (r *Records) Commit(ctx context.Context, t pando.Txn) (pando.StoreRevision, error) {
	r.mu.Lock()
	t.Fence = r.fence
	err := r.World.Spares(t)
	r.mu.Unlock()
	if err != nil {
		return 0, err
	}
	at, err := r.registry.Commit(ctx, t)
	if err != nil {
		return 0, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.took(t, at)
	r.announce()
	return at, nil
}

// took applies an own write to the records that this host follows.
func (r *Records) took(t pando.Txn, at pando.StoreRevision) {
	mine := pando.Txn{Delete: t.Delete}
	for _, v := range t.Put {
		switch v := v.(type) {
		case pando.Intent:
			r.Intents.note(v, at)
		case pando.Decision: // nothing here reads it
		default:
			mine.Put = append(mine.Put, v)
		}
	}
	r.World.Committed(mine, at)
}

// Service returns the record of a service and the spec of one of its revisions.
func (r *Records) Service(s pando.ServiceKey, revision int) (pando.Service, pando.Spec) {
	r.mu.Lock()
	defer r.mu.Unlock()
	spec, _ := r.World.SpecOf(s, revision)
	return r.World.Services[s].V, spec
}

// Endpoints returns the ports and the instances of a service.
func (r *Records) Endpoints(s pando.ServiceKey) (pando.Endpoints, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e, ok := r.World.Endpoints[s]
	return e.V, ok
}

// Record returns the record of an instance.
func (r *Records) Record(i pando.InstanceID) world.Versioned[pando.Instance] {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.World.Instances[i]
}
