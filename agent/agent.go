// Package agent is the host loop. It makes this host match the registry: which instances run here,
// and where packets go. It also serves the API of the instances on this host.
//
// The agent receives the records and passes them on. A runner per instance owns the state of that
// instance. agent/steer publishes the tables, and agent/branch keeps the state of services.
//
// It never decides how many instances there are or where they run: control decides. It may be
// killed at any moment. Instances, tables and objects outlive it, and a new agent adopts them.
//
// One lock, of agent/records, guards the records and everything derived from them. A function that takes
// the world of the records is called with this lock, here and in every room.
package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/announce"
	"pando.run/pando/agent/branch"
	"pando.run/pando/agent/crew"
	"pando.run/pando/agent/flows"
	"pando.run/pando/agent/inspect"
	"pando.run/pando/agent/meter"
	"pando.run/pando/agent/move"
	"pando.run/pando/agent/outbound"
	"pando.run/pando/agent/presence"
	"pando.run/pando/agent/records"
	"pando.run/pando/agent/room"
	"pando.run/pando/agent/route"
	"pando.run/pando/agent/runner"
	"pando.run/pando/agent/self"
	"pando.run/pando/agent/steer"
	"pando.run/pando/agent/storeguard"
	"pando.run/pando/agent/supply"
	"pando.run/pando/agent/work"
	"pando.run/pando/world"
)

// Lease is how long a host's record outlives its agent. Control starts replacements elsewhere only
// after the lease ends.
const Lease = pando.HostLease

// Agent runs one host. It serves pando.Self to the instances of the host.
type Agent struct {
	config     Config
	self       *self.API
	inspector  *inspect.Inspector
	snapshots  *move.Snapshots
	departures *move.Departures
	arrivals   *move.Arrivals
	records    *records.Records
	crews      *crew.Crews
	guard      *storeguard.Guard // its Registry
	branches   *branch.Branches
	sweeper    *flows.Sweeper
	counts     *flows.Counter
	askReads   *crew.AskReads
	queue      *steer.Queue
	renewals   secretsSeen
	supplier   *supply.Supplier
	meter      *meter.Meter
	scope      *scope
	payments   *outbound.Payments
	room       *room.Guard // nil: without a Disk
	presence   *presence.Presence
	announce   *announce.Host
	routes     *route.Host
	leasesLost atomic.Uint64
	host       *runner.Host // of the runners
	work       *work.Reader
	joins      joins
	wg         sync.WaitGroup
	ctx        context.Context // the context of Run

	// found holds the sandboxes of a former agent that have no matching record yet. The lock of the
	// records guards it, and leaveBy.
	found map[pando.InstanceID]pando.Sandbox
	// adoption is that of a restored store.
	adoption *adoption
	// leaveBy is the deadline for connections when the host leaves, or zero if it stays.
	leaveBy time.Time
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
		joined, wait := a.config.Clock.Now(), time.Duration(0)
		for {
			select {
			case <-ctx.Done():
				return
			case <-lost:
			}
			a.config.Log.Warn("the host's lease is lost; joining again", "host", a.config.Host.Name)
			a.routes.SetUnleased(true)
			a.leasesLost.Add(1)
			wait = rejoinWait(wait, a.config.Clock.Now().Sub(joined))
			if pando.Sleep(ctx, a.config.Clock, wait) != nil {
				return
			}
			if lost, err = a.joinOnce(ctx); err != nil {
				return
			}
			joined = a.config.Clock.Now()
			a.routes.SetUnleased(false)
			a.crews.WakeAll()
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
			a.config.Log.Error("this host cannot join the cluster; it is tried again", "error", err)
			said = text
		}
		if serr := pando.Sleep(ctx, a.config.Clock, wait); serr != nil {
			return nil, fmt.Errorf("%w: %w", err, serr)
		}
		if odd {
			wait = min(2*wait, joinWaitMax)
		}
	}
}

// joins lets one join of a host go on at a time. It is full during a join. A join takes over from
// the one before it, so the last fence is the valid one: two joins at a time would leave that to
// chance.
type joins chan struct{}

// join writes the record of an agent's host and keeps its fence.
func (j joins) join(ctx context.Context, a *Agent) (lost <-chan struct{}, err error) {
	select {
	case j <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-j }()
	h := a.config.Host
	a.records.Lock()
	h.Leaving = !a.leaveBy.IsZero()
	a.records.Unlock()
	var fence pando.Fence
	if fence, lost, err = a.config.Server.Registry.Join(ctx, h, Lease); err != nil {
		return nil, err
	}
	a.records.Join(fence)
	return lost, nil
}

// joinWaitMax bounds the wait between two attempts to join after an odd error of the store.
const joinWaitMax = 5 * time.Second

// steerAll queues every service.
func (a *Agent) steerAll(w *world.World) {
	for _, s := range w.Names() {
		a.queue.Changed(s)
	}
}
