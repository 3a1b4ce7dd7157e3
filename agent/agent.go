// Package agent is the host loop. It makes this host match the registry: which instances run here,
// and where packets go. It also serves the API of the instances on this host.
//
// It never decides how many instances there are or where they run: control decides. It may be
// killed at any moment. Instances, tables and objects outlive it, and a new agent adopts them.
package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"pando.run/pando"
	"pando.run/pando/state"
	"pando.run/pando/world"
)

// Lease is how long a host's record outlives its agent. Control starts replacements elsewhere only
// after the lease ends.
const Lease = pando.HostLease

// Config holds the settings and the drivers of an agent.
type Config struct {
	Host      pando.Host
	Registry  pando.Registry
	Sandboxes pando.Sandboxes
	Steering  pando.Steering
	Prober    pando.Prober
	Peers     pando.Peers
	Objects   pando.Objects
	Journals  pando.Journals // nil: uncommitted writes of instances are lost with the agent
	// Control answers an ask in one durable write. If it is nil or unreachable, the agent writes the
	// ask to the store, and the watch brings the answer.
	Control pando.Decider
	Clock   pando.Clock
	IDs     pando.IDs
	Log     *slog.Logger
	// Serve returns the HTTP handler of an instance's own API.
	Serve func(pando.Self, pando.InstanceID) http.Handler
	// Git returns the read-only smart HTTP handler of states. Nil disables it.
	Git func(resolve func(pando.ServiceKey) (pando.Objects, pando.ObjectID, error)) http.Handler
	// OpenLog returns the log of an instance that runs or is gone.
	OpenLog func(ctx context.Context, s pando.ServiceKey, i pando.InstanceID, lines int, follow bool) (io.ReadCloser, error)
	// TrimEvery is the interval at which the agent trims old history from the states of this host.
	// Keep is the history that remains. Zero means five minutes and state.DefaultKeep.
	TrimEvery time.Duration
	Keep      state.Keep
}

// Agent runs one host.
type Agent struct {
	Config
	mu      sync.Mutex
	world   *world.World
	fence   pando.Fence
	runners map[pando.InstanceID]*runner
	crews   map[pando.ServiceKey][]*runner // per service, sorted by instance name
	// found holds the sandboxes of a former agent that have no matching record yet.
	found   map[pando.InstanceID]pando.Sandbox
	merges  map[pando.ServiceKey]turn                // one merge into main at a time
	steered map[pando.ServiceKey]pando.SteeringTable // the table in force, per service
	// rotation holds the instances that take flows, as last sent to the crews.
	rotation map[pando.ServiceKey]map[pando.InstanceID]bool
	// Steering changes that failed and are retried.
	debts   map[errand]*debt
	owing   chan struct{}       // holds an element when there is a new debt
	applied pando.StoreRevision // steering is current up to here, except for the debts
	changed chan struct{}       // closed and replaced at every change of the world
	// leaveBy is the deadline for connections when the host leaves, or zero if it stays.
	leaveBy  time.Time
	sweep    pando.SweepReport
	swept    time.Time
	evicted  atomic.Int64 // as of the last sweep
	sweeping turn
	steps    atomic.Int64                   // of all runners
	waves    map[pando.ServiceKey]*wave     // of instances drained because they do not answer
	vain     map[pando.ServiceKey]time.Time // when a preparation was last discarded unused
	wg       sync.WaitGroup
	ctx      context.Context // the context of Run
}

// New returns an agent. Run starts it.
func New(c Config) *Agent {
	c.TrimEvery, c.Keep = cmp.Or(c.TrimEvery, trimWait), cmp.Or(c.Keep, state.DefaultKeep)
	return &Agent{
		Config: c, world: world.New(), runners: map[pando.InstanceID]*runner{},
		crews: map[pando.ServiceKey][]*runner{}, rotation: map[pando.ServiceKey]map[pando.InstanceID]bool{},
		debts: map[errand]*debt{}, owing: make(chan struct{}, 1),
		found: map[pando.InstanceID]pando.Sandbox{}, merges: map[pando.ServiceKey]turn{}, steered: map[pando.ServiceKey]pando.SteeringTable{},
		changed: make(chan struct{}), sweeping: newTurn(),
		waves: map[pando.ServiceKey]*wave{}, vain: map[pando.ServiceKey]time.Time{},
	}
}

// Run adopts the sandboxes of a former agent, joins the cluster and keeps this host as the registry
// wants it until ctx ends. Instances continue to run after Run returns.
func (a *Agent) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer a.wg.Wait()
	defer cancel()
	a.ctx = ctx
	boxes, err := a.Sandboxes.Attach(ctx)
	if err != nil {
		return err
	}
	for _, b := range boxes {
		a.found[b.Instance()] = b
	}
	if err := a.join(ctx); err != nil {
		return err
	}
	a.spawn(a.sweepNow)
	a.spawn(a.payDebts)
	a.spawn(a.trimStates)
	return world.Follow(ctx, a.Clock, a.Registry, pando.Root, a.take)
}

// spawn runs f in a goroutine with the context of Run. Run waits for it before it returns.
func (a *Agent) spawn(f func(context.Context)) {
	a.wg.Add(1)
	go func() {
		defer a.wg.Done()
		f(a.ctx)
	}()
}

// join keeps this host's record in the registry until ctx ends.
func (a *Agent) join(ctx context.Context) error {
	lost, err := a.joinOnce(ctx)
	if err != nil {
		return err
	}
	a.spawn(func(ctx context.Context) {
		for {
			select {
			case <-ctx.Done():
				return
			case <-lost:
			}
			a.Log.Warn("the host's lease is lost; joining again", "host", a.Host.Name)
			if lost, err = a.joinOnce(ctx); err != nil {
				return
			}
			a.kickAll()
		}
	})
	return nil
}

func (a *Agent) joinOnce(ctx context.Context) (<-chan struct{}, error) {
	for {
		h := a.Host
		a.mu.Lock()
		h.Leaving = !a.leaveBy.IsZero()
		a.mu.Unlock()
		fence, lost, err := a.Registry.Join(ctx, h, Lease)
		if err == nil {
			a.mu.Lock()
			a.fence = fence
			a.mu.Unlock()
			return lost, nil
		}
		if !errors.Is(err, pando.ErrUnavailable) && !errors.Is(err, pando.ErrStoreFull) {
			return nil, err
		}
		if serr := pando.Sleep(ctx, a.Clock, 100*time.Millisecond); serr != nil {
			return nil, fmt.Errorf("%w: %w", err, serr)
		}
	}
}

func (a *Agent) kickAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.everyRunner() {
		r.kick()
	}
}

// everyRunner returns the runners sorted by instance name, so that their order does not depend on a
// map. The caller holds the lock.
func (a *Agent) everyRunner() (out []*runner) {
	for _, id := range slices.Sorted(maps.Keys(a.runners)) {
		out = append(out, a.runners[id])
	}
	return out
}

// wait blocks until ok returns true. It calls ok after every change of the world, with the lock
// held.
func (a *Agent) wait(ctx context.Context, ok func() bool) error {
	for {
		a.mu.Lock()
		done, news := ok(), a.changed
		a.mu.Unlock()
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

// commit writes with this host's fence and applies the result to the world at once.
func (a *Agent) commit(ctx context.Context, t pando.Txn) (pando.StoreRevision, error) {
	a.mu.Lock()
	t.Fence = a.fence
	a.mu.Unlock()
	at, err := a.Registry.Commit(ctx, t)
	if err != nil {
		return 0, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.world.Committed(t, at)
	return at, nil
}
