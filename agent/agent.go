// Package agent is the host loop. It makes this host match the registry: which instances run here,
// and where packets go. It also serves the API of the instances on this host.
//
// The agent receives the records and passes them on. A runner per instance owns the state of that
// instance. agent/steer publishes the tables, and agent/branch keeps the state of services.
//
// It never decides how many instances there are or where they run: control decides. It may be
// killed at any moment. Instances, tables and objects outlive it, and a new agent adopts them.
package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/anchor"
	"pando.run/pando/agent/branch"
	"pando.run/pando/agent/meter"
	"pando.run/pando/agent/room"
	"pando.run/pando/agent/steer"
	"pando.run/pando/agent/turn"
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
	// Secrets returns the secrets of an instance of this host, from the server. Nil: there are none.
	Secrets func(context.Context, pando.InstanceID) (map[string][]byte, error)
	Kept    pando.Volumes // nil: no service of this host has a volume
	// Outbound shares connections to other machines among tenants. Nil: one tenant may take all.
	Outbound pando.Outbound
	Disk     pando.Disk   // nil: nothing bounds what volumes take
	Images   pando.Images // nil: no service of this host has an image
	// SnapshotStore keeps the snapshots of instances. Nil: this host makes none.
	SnapshotStore pando.Snapshots
	// SnapshotKeys returns the keys of the snapshots of an instance of this host, from the server. Nil:
	// this host makes none.
	SnapshotKeys func(context.Context, pando.InstanceID) (pando.SnapshotKeys, error)
	// Books keeps the book of this host's work, for bills. Nil: its work is not billed.
	Books pando.Books
	// Traffic returns the bytes that a device of this host has sent and received. Nil: unknown.
	Traffic func(device string) (sent, received uint64)
	// Queues returns the queues of the devices of this host, by name. Nil: unknown. Uplinks names
	// those to report.
	Queues  func() (map[string]pando.LinkQueue, error)
	Uplinks []string
	// Link and Path are those of meter.Config.
	Link func() float64
	Path func(ifindex int) pando.PathUse
	// Control answers an ask in one durable write. If it is nil or unreachable, the agent writes the
	// ask to the store, and the watch brings the answer.
	Control pando.Decider
	// Liveness finds dead hosts before their leases end. Nil: only the leases count.
	Liveness pando.Liveness
	// Resolvers names the name servers of the host that do not answer. Nil: none is known.
	Resolvers func() string
	// Announcer answers for VIPs on the network that Host.Segment names, after Takes has asked the
	// other hosts. Nil: clients need a route to a host. Flows fills the connection table before.
	Announcer pando.Announcer
	Takes     pando.VIPPeers
	Flows     pando.FlowBook
	// Routers announces VIPs to routers. Nil: this host speaks with none. Ends reports, at the end of
	// the agent, that no agent follows on this host.
	Routers pando.Routers
	Ends    func() bool
	Clock   pando.Clock
	IDs     pando.IDs
	Log     *slog.Logger
	// Sightings keeps which store this host has seen. Nil: a new agent accepts any store.
	Sightings pando.Sightings
	// Serve returns the HTTP handler of an instance's own API.
	Serve func(pando.Self, pando.InstanceID) http.Handler
	// Git returns the read-only smart HTTP handler of states. Nil disables it.
	Git func(resolve func(pando.ServiceKey) (pando.Objects, pando.ObjectID, error)) http.Handler
	// OpenLog returns lines of an instance that runs or is gone.
	OpenLog func(
		ctx context.Context, s pando.ServiceKey, i pando.InstanceID, q pando.LogQuery,
	) (pando.LogLines, error)
	// Worked returns the processor time of this process. Nil: it counts as busy all the time.
	Worked func() time.Duration
	// Logged returns the counts of this process's log. Nil: they are 0.
	Logged func() pando.LogFigures
	// TrimEvery is the interval at which the agent trims old history from the states of this host.
	// Keep is the history that remains. Zero means five minutes and state.DefaultKeep.
	TrimEvery time.Duration
	Keep      state.Keep
}

// trimWait is the default time between two trims of the states of this host.
const trimWait = 5 * time.Minute

// Agent runs one host. It serves pando.Self to the instances of the host.
type Agent struct {
	Config
	*selfAPI
	*window
	*snapshots
	seeds *seeds
	*departures
	*arrivals
	*records
	*crews
	*exchange
	anchor   *anchor.Anchor // its Registry
	branches *branch.Branches
	sweeper  *sweeper
	counts   *counts
	askReads *askReads
	preparer *preparer
	renewals secretsSeen
	pulls    *pulls
	meter    *meter.Meter
	scope    *scope
	payments *payments
	room     *room.Guard // nil: without a Disk
	presence *presence
	*heralding
	routing *routing
	door    door
	steps   atomic.Int64 // of all runners
	tally   tally
	works   *works
	joins   joins
	wg      sync.WaitGroup
	ctx     context.Context // the context of Run

	// found holds the sandboxes of a former agent that have no matching record yet. The lock of the
	// records guards it, and leaveBy.
	found map[pando.InstanceID]pando.Sandbox
	// adoption is that of a restored store.
	adoption *adoption
	// leaveBy is the deadline for connections when the host leaves, or zero if it stays.
	leaveBy time.Time
}

// New returns an agent. Run starts it.
func New(c Config) *Agent {
	c.Host.Copies, c.Host.Freezes = true, c.SnapshotStore != nil
	c.TrimEvery, c.Keep = cmp.Or(c.TrimEvery, trimWait), cmp.Or(c.Keep, state.DefaultKeep)
	own := anchor.New(c.Registry, c.Sightings, c.Clock, c.Log)
	c.Registry = own
	a := &Agent{
		Config: c, joins: make(joins, 1), anchor: own, sweeper: newSweeper(&c),
		found: map[pando.InstanceID]pando.Sandbox{}, renewals: secretsSeen{},
		pulls: newPulls(),
	}
	a.scope, a.presence, a.room = newScope(a), newPresence(a), newRoom(a)
	a.payments = newPayments(c.Outbound, c.Clock, c.Log, retryWait)
	a.records = newRecords(&a.Config)
	a.crews = newCrews(a.records, steer.New(c.Steering, tables{a}, c.Clock, c.Log))
	a.adoption, a.heralding, a.routing = &adoption{agent: a}, newHeralding(a), newRouting(a)
	a.selfAPI, a.window, a.preparer = &selfAPI{a}, &window{a, newSessions(), newLogRoom()}, newPreparer(a)
	a.snapshots, a.seeds = &snapshots{agent: a, turn: turn.New()}, newSeeds(a)
	a.works, a.counts, a.askReads = newWorks(a), newCounts(a), newAskReads(a)
	a.departures, a.arrivals = newDepartures(a), newArrivals(a)
	a.meter = meter.New(meter.Config{
		Host: c.Host, Steering: c.Steering, Peers: c.Peers, Source: measured{a}, Link: c.Link,
		Path: c.Path, Queues: c.Queues,
		Clock: c.Clock, Log: c.Log,
	})
	a.branches = branch.New(branch.Config{
		Host: c.Host.Name, Records: mains{a.records}, Objects: c.Objects, Journals: c.Journals,
		Peers: c.Peers,
		Clock: c.Clock, Log: c.Log, TrimEvery: c.TrimEvery, Keep: c.Keep,
	})
	a.exchange = &exchange{a.branches}
	return a
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
		if m, comes := b.Arriving(); comes {
			a.mu.Lock()
			a.arrivals.found(b, m)
			a.mu.Unlock()
			continue
		}
		a.found[b.Instance()] = b
	}
	a.anchor.Recall(len(boxes) > 0)
	a.works.open(len(boxes) > 0)
	if err := a.join(ctx); err != nil {
		return err
	}
	a.spawn(a.steering.Run)
	a.spawn(a.sweepOften)
	a.spawn(a.counts.run)
	a.spawn(a.payments.run)
	a.spawn(a.presence.run)
	a.spawn(a.heralding.run)
	a.spawn(a.routing.run)
	a.spawn(a.meter.Run)
	a.spawn(a.works.run)
	a.spawn(knocks{a}.run)
	a.spawn(a.branches.TrimOften)
	a.spawn(a.branches.Tend)
	if a.room != nil {
		a.spawn(a.room.Run)
	}
	scope := a.scope.following()
	scope.Odd = func(err error) {
		a.Log.Error("the store cannot be followed; it is tried again", "error", err)
	}
	return world.FollowScope(ctx, a.Clock, a.Registry, scope)
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
		joined, wait := a.Clock.Now(), time.Duration(0)
		for {
			select {
			case <-ctx.Done():
				return
			case <-lost:
			}
			a.Log.Warn("the host's lease is lost; joining again", "host", a.Host.Name)
			a.routing.unleased.Store(true)
			a.tally.leasesLost.Add(1)
			if wait = rejoinWait(wait, a.Clock.Now().Sub(joined)); pando.Sleep(ctx, a.Clock, wait) != nil {
				return
			}
			if lost, err = a.joinOnce(ctx); err != nil {
				return
			}
			joined = a.Clock.Now()
			a.routing.unleased.Store(false)
			a.wakeAll()
		}
	})
	return nil
}

// rejoinWait returns the wait before the next join, from the one before the last join and the time that
// the lease lived. A lease that lived long is renewed at once: others find this host away meanwhile.
func rejoinWait(last, lived time.Duration) time.Duration {
	switch {
	case lived >= Lease:
		return 0
	case last == 0:
		return rejoinWaitMin
	}
	return min(2*last, rejoinWaitMax)
}

// Bounds of the wait for the next join while the store takes each lease away at once.
const (
	rejoinWaitMin = 100 * time.Millisecond
	rejoinWaitMax = 2 * time.Second
)

// joinOnce joins once the store lets it. It returns an error only after the end of ctx.
func (a *Agent) joinOnce(ctx context.Context) (<-chan struct{}, error) {
	wait, said := 100*time.Millisecond, ""
	for {
		lost, err := a.joins.join(ctx, a)
		if err == nil {
			return lost, nil
		}
		odd := !errors.Is(err, pando.ErrUnavailable) && !errors.Is(err, pando.ErrStoreFull)
		if text := err.Error(); odd && text != said {
			a.Log.Error("this host cannot join the cluster; it is tried again", "error", err)
			said = text
		}
		if serr := pando.Sleep(ctx, a.Clock, wait); serr != nil {
			return nil, fmt.Errorf("%w: %w", err, serr)
		}
		if odd {
			wait = min(2*wait, joinWaitMax)
		}
	}
}

// joins lets one join of a host go on at a time. It is full during a join. A join takes over from the
// one before it, so the last fence is the valid one: two joins at a time would leave that to chance.
type joins chan struct{}

// join writes the record of an agent's host and keeps its fence.
func (j joins) join(ctx context.Context, a *Agent) (lost <-chan struct{}, err error) {
	select {
	case j <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-j }()
	h := a.Host
	a.mu.Lock()
	h.Leaving = !a.leaveBy.IsZero()
	a.mu.Unlock()
	var fence pando.Fence
	if fence, lost, err = a.Registry.Join(ctx, h, Lease); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fence = fence
	return lost, nil
}

// joinWaitMax bounds the wait between two attempts to join after an odd error of the store.
const joinWaitMax = 5 * time.Second
