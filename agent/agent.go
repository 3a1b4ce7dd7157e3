// Package agent is the host loop: it makes this host match the registry (which instances run here, where packets go) and
// answers what instances ask of it.
//
// It never decides how many instances there are or where they go: control does. It may be killed at any moment:
// instances, tables and objects outlive it, and a new agent takes them over.
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

// Lease is how long a host's record outlives its agent: only its end authorises starting things elsewhere.
const Lease = pando.HostLease

// Config is what an agent needs.
type Config struct {
	Host      pando.Host
	Registry  pando.Registry
	Sandboxes pando.Sandboxes
	Steering  pando.Steering
	Prober    pando.Prober
	Peers     pando.Peers
	Objects   pando.Objects
	Journals  pando.Journals // nil: what instances write and do not commit is lost with the agent
	// Control answers asks in one durable write; nil, or out of reach: they are written first, and answered by way of the store.
	Control pando.Decider
	Clock   pando.Clock
	IDs     pando.IDs
	Log     *slog.Logger
	// Serve makes the HTTP face of an instance's own API.
	Serve func(pando.Self, pando.InstanceID) http.Handler
	// Git makes the read-only smart HTTP face of states; nil: there is none.
	Git func(resolve func(pando.ServiceKey) (pando.Objects, pando.ObjectID, error)) http.Handler
	// OpenLog reads the log of an instance, living or gone.
	OpenLog func(ctx context.Context, s pando.ServiceKey, i pando.InstanceID, lines int, follow bool) (io.ReadCloser, error)
	// TrimEvery is how often old history is cut off the states of this host, and Keep how much of it stays; zero: five
	// minutes, state.DefaultKeep.
	TrimEvery time.Duration
	Keep      state.Keep
}

// Agent runs one host.
type Agent struct {
	Config
	mu       sync.Mutex
	world    *world.World
	fence    pando.Fence
	runners  map[pando.InstanceID]*runner
	crews    map[pando.ServiceKey][]*runner                 // the runners of each service, in the order of their instances' names
	found    map[pando.InstanceID]pando.Sandbox             // of a former agent, not yet matched with a record
	merges   map[pando.ServiceKey]turn                      // into main, one at a time
	steered  map[pando.ServiceKey]pando.SteeringTable       // the table of each service that is in force
	rotation map[pando.ServiceKey]map[pando.InstanceID]bool // the instances that take flows, as the crews were told last
	debts    map[errand]*debt                               // changes of the steering that failed and are tried again
	owing    chan struct{}                                  // has an element when there is a new debt
	applied  pando.StoreRevision                            // everything up to here is steered, but for the debts
	changed  chan struct{}                                  // closed and replaced at every change of the world
	leaveBy  time.Time                                      // when connections of a host that leaves have ended; zero: it stays
	sweep    pando.SweepReport
	swept    time.Time
	evicted  atomic.Int64 // as of the last sweep
	sweeping turn
	steps    atomic.Int64                   // of all runners
	waves    map[pando.ServiceKey]*wave     // of instances that are taken out because they do not answer
	vain     map[pando.ServiceKey]time.Time // when it last turned out that something was prepared in vain
	wg       sync.WaitGroup
	ctx      context.Context // of Run
}

// New returns an agent; Run makes it work.
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

// Run takes over what a former agent left, joins the cluster and keeps the host as the registry wants it until ctx ends.
// Instances go on running after it.
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

// spawn runs f until ctx ends; Run waits for it.
func (a *Agent) spawn(f func(context.Context)) {
	a.wg.Add(1)
	go func() {
		defer a.wg.Done()
		f(a.ctx)
	}()
}

// join keeps this host's record in the registry for as long as ctx lives.
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

// everyRunner are the runners in the order of their instances' names: what they do first must not hang on a map. The caller
// holds the lock.
func (a *Agent) everyRunner() (out []*runner) {
	for _, id := range slices.Sorted(maps.Keys(a.runners)) {
		out = append(out, a.runners[id])
	}
	return out
}

// wait blocks until ok holds; it is looked at after every change of the world, with the lock held.
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

// commit writes as this host, and takes the result over at once.
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
