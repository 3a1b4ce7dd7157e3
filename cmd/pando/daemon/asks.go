package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/cluster/peer"
	"pando.run/pando/world"
)

// silenceWait is how long a leader that gave no answer gets no further asks. Each would cost its
// instance the whole wait before the ask is written to the store.
const silenceWait = 2 * time.Second

// leader brings the asks of this host to the control that leads, wherever its server is.
type leader struct {
	own      pando.HostName
	here     pando.Decider // the control of this host's server; nil: it has none
	there    askFunc
	clock    pando.Clock
	registry pando.Registry

	mu     sync.Mutex
	name   pando.HostName // of the leader's host; "": none is known
	silent time.Time      // no asks before this time
}

// askFunc sends an ask to the server of another host, by the contract of pando.Decider.
type askFunc func(
	ctx context.Context, server pando.HostName, by pando.Fence, i pando.Intent, sent func(),
) ([]pando.Record, error)

var _ pando.Decider = (*leader)(nil)

// leader returns the path of this host's asks. It adds the job that follows the leadership.
func (c *cluster) leader(p place, peers *peer.Client) *leader {
	l := &leader{own: pando.HostName(p.Host), clock: clock.Clock{}, registry: c.registry}
	if c.server == "" {
		server := pando.Host{Name: "server", Endpoint: "unix://" + p.control()}
		l.here = peer.Control{Client: peers, Server: server}
	}
	l.there = func(ctx context.Context, server pando.HostName, by pando.Fence, i pando.Intent,
		sent func()) ([]pando.Record, error) {
		at, ok := c.servers.store(server)
		if !ok {
			return nil, fmt.Errorf("%w: the address of the server on host %s is not known",
				pando.ErrUnavailable, server)
		}
		return c.registry.Ask(ctx, at, by, i, sent)
	}
	c.jobs = append(c.jobs, l.run)
	return l
}

// Answer implements pando.Decider.
func (l *leader) Answer(
	ctx context.Context, by pando.Fence, i pando.Intent, sent func(),
) ([]pando.Record, error) {
	l.mu.Lock()
	name, silent := l.name, l.silent
	l.mu.Unlock()
	switch {
	case l.here != nil && (name == l.own || name == ""):
		return l.here.Answer(ctx, by, i, sent)
	case name == "":
		return nil, fmt.Errorf("%w: no server leads", pando.ErrUnavailable)
	case l.clock.Now().Before(silent):
		return nil, fmt.Errorf("%w: the leader on host %s was silent", pando.ErrUnavailable, name)
	}
	records, err := l.there(ctx, name, by, i, sent)
	late := errors.Is(ctx.Err(), context.DeadlineExceeded)
	if err != nil && (late || errors.Is(err, pando.ErrUnsupported)) {
		l.mu.Lock()
		if l.name == name {
			l.silent = l.clock.Now().Add(silenceWait)
		}
		l.mu.Unlock()
	}
	return records, err
}

// run follows the leadership of control until ctx ends.
func (l *leader) run(ctx context.Context) error {
	return world.Follow(ctx, l.clock, l.registry, pando.LeaderKey("control"), l.learn)
}

// learn takes the leader from its record. A new leadership gets asks at once.
func (l *leader) learn(b pando.Batch, reset bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if reset {
		l.name = ""
	}
	for _, r := range b.Changes {
		var name pando.HostName
		if r.Key != pando.LeaderKey("control") || r.Value != nil && world.Decode(r, &name) != nil {
			continue
		}
		l.name, l.silent = name, time.Time{}
	}
}
