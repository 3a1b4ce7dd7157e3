// Package branch keeps the branches of one host: each instance's copy of its service's state. It
// creates them, merges them into main exactly once, and drops them.
//
// It never loses a durable commit: a branch is dropped after main contains it.
package branch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/turn"
	"pando.run/pando/state"
	"pando.run/pando/world"
)

// Records is the registry as this host has last seen it.
type Records interface {
	// Main returns the head of a service's main, or the zero value.
	Main(s pando.ServiceKey) world.Versioned[pando.StateHead]
	// Newest reads the head of a service's main from the registry, or the zero value.
	Newest(ctx context.Context, s pando.ServiceKey) (pando.StateHead, error)
	// Types returns the types of the paths in the spec of a revision.
	Types(s pando.ServiceKey, revision int) map[string]pando.StateType
	// Target returns the target revision of a service. ok is false if the service has no record.
	Target(s pando.ServiceKey) (revision int, ok bool)
	// Alive reports whether an instance has a record.
	Alive(i pando.InstanceID) bool
	// Heads returns the head of every main and the number of merges ever. ok is false until the
	// first snapshot has arrived.
	Heads() (heads map[pando.ServiceKey]pando.ObjectID, merges int64, ok bool)
	// Keeper returns the record of a state on several hosts. Modified 0: none.
	Keeper(s pando.ServiceKey) world.Versioned[pando.Keeper]
	// Keepers returns every such record.
	Keepers() []world.Versioned[pando.Keeper]
	// Copies returns the number of copies that the newest spec of a service wants, as far as this host
	// has read it.
	Copies(s pando.ServiceKey) int
	// Reach returns the record of a host with a lease.
	Reach(h pando.HostName) (pando.Host, bool)
	// Seated reports whether a host has an instance of a service.
	Seated(s pando.ServiceKey, h pando.HostName) bool
	// Seat returns the host of an instance that has a record.
	Seat(s pando.ServiceKey, i pando.InstanceID) (h pando.HostName, ok bool)
	// News returns a channel that is closed at the next change.
	News() <-chan struct{}
	// Commit writes with the fence of the host.
	Commit(ctx context.Context, t pando.Txn) (pando.StoreRevision, error)
}

// Config holds the settings and the drivers of the branches of a host.
type Config struct {
	Host      pando.HostName
	Records   Records
	Objects   pando.Objects
	Peers     pando.Peers    // the way to other copies of a state
	Journals  pando.Journals // nil: uncommitted writes are lost with the agent
	Clock     pando.Clock
	Log       *slog.Logger
	TrimEvery time.Duration
	Keep      state.Keep
}

// Branches are the branches of the instances of one host.
type Branches struct {
	config   Config
	dropping atomic.Bool // the branches of former instances
	copies   *copies

	mu     sync.Mutex
	open   map[pando.InstanceID]*opening
	merges map[pando.ServiceKey]*merging
}

// opening is a branch that exists or is being created.
type opening struct {
	service pando.ServiceKey
	over    chan struct{} // closed once the branch exists or failed to open
	branch  *state.Branch // nil until then, and after a failure
}

// merging serialises the merges into one main.
type merging struct {
	turn  turn.Turn
	users int // those that have the turn or wait for it
}

// ErrNoState reports that the branch of an instance could not be opened. The agent's log has the
// reason.
var ErrNoState = errors.New("the state of this instance could not be opened")

// ErrMoved reports a branch that can never be merged because main is on another host.
var ErrMoved = fmt.Errorf("%w: the service has moved", pando.ErrRefused)

// New returns the branches of a host.
func New(c Config) *Branches {
	return &Branches{
		config: c, open: map[pando.InstanceID]*opening{}, merges: map[pando.ServiceKey]*merging{},
		copies: newCopies(),
	}
}

// Of returns the branch of an instance. It waits while the branch is being created.
func (b *Branches) Of(ctx context.Context, i pando.InstanceID) (*state.Branch, error) {
	b.mu.Lock()
	n := b.open[i]
	b.mu.Unlock()
	if n == nil {
		return nil, fmt.Errorf("instance %s: %w", i, ErrNoState)
	}
	select {
	case <-n.over:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if n.branch == nil {
		return nil, fmt.Errorf("instance %s: %w", i, ErrNoState)
	}
	return n.branch, nil
}

// Forget releases the branch of an instance that is gone. The branch stays in the host's objects
// unless Drop has removed it.
func (b *Branches) Forget(i pando.InstanceID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.open, i)
	b.copies.forget(i)
}

// repo returns the state of a service on this host, typed by the spec of one revision. An instance
// merges by the spec of its own revision.
func (b *Branches) repo(s pando.ServiceKey, revision int) *state.Repo {
	return state.Open(b.config.Objects, s, b.config.Records.Types(s, revision)).With(b.config.Journals).
		Shared(func() bool { return b.config.Records.Keeper(s).Modified > 0 })
}

// Settle records the position of each open branch. The branch of an instance that no longer writes
// then keeps no history alive.
func (b *Branches) Settle(ctx context.Context) {
	b.mu.Lock()
	var open []*state.Branch
	for _, i := range slices.Sorted(maps.Keys(b.open)) {
		if n := b.open[i]; n.branch != nil {
			open = append(open, n.branch)
		}
	}
	b.mu.Unlock()
	for _, branch := range open {
		if err := branch.Settle(ctx); err != nil && ctx.Err() == nil {
			b.config.Log.Warn("where a branch is could not be noted; its history stays until it is",
				"error", err)
		}
	}
}

func (b *Branches) isOpen(i pando.InstanceID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, open := b.open[i]
	return open
}

func (b *Branches) seatedHere(s pando.ServiceKey, i pando.InstanceID) bool {
	h, seated := b.config.Records.Seat(s, i)
	return seated && h == b.config.Host
}

// runs reports whether an instance has a record and its host has its lease.
func (b *Branches) runs(s pando.ServiceKey, i pando.InstanceID) bool {
	h, seated := b.config.Records.Seat(s, i)
	if !seated {
		return false
	}
	_, here := b.config.Records.Reach(h)
	return here || h == b.config.Host
}

// collisionWait is how long a merge waits for the change that it collided with.
const collisionWait = 50 * time.Millisecond

// awaitNews waits for the change that a write collided with, at most collisionWait.
func (b *Branches) awaitNews(ctx context.Context, news <-chan struct{}) error {
	timer, stop := b.config.Clock.After(collisionWait)
	defer stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-news:
	case <-timer:
	}
	return nil
}
