package etcd

import (
	"context"
	"errors"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"google.golang.org/grpc"

	"pando.run/pando"
)

// watchesMax bounds the watches of one stream. An agent has a few, and two for each service on its
// host.
const watchesMax = 8 + 2*pando.ServicesMax

// errRegained ends a stream after its member has regained the right to read a service. The member
// has missed changes, so it reads everything again.
var errRegained = errors.New("a service came to this host: read it again")

// guarded is an open stream of a member.
type guarded struct {
	grpc.ServerStream
	gate
	ctx   context.Context
	of    pando.Member
	end   context.CancelCauseFunc
	known map[int64]bool // its own leases; at most leasesMax

	mu      sync.Mutex
	asked   []*watching         // not confirmed by etcd yet, in order
	watches map[int64]*watching // by etcd's number; with asked at most watchesMax
}

// watching is one watch of a member.
type watching struct {
	scope scope
	after int64 // the revision that the member has read; 0: none
	// lapsed is true once the member may have missed a change, for want of the right to it.
	lapsed bool
}

// Context ends with the membership.
func (g *guarded) Context() context.Context { return g.ctx }

// RecvMsg refuses to keep another host's lease alive, which would make that host seem alive. It
// refuses to watch more than the member may read. A refusal ends the stream.
func (g *guarded) RecvMsg(m any) error {
	if err := g.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	switch r := m.(type) {
	case *pb.LeaseKeepAliveRequest:
		return g.keep(r.ID)
	case *pb.WatchRequest:
		if c := r.GetCreateRequest(); c != nil && !g.of.Server {
			return g.mayWatch(c)
		}
	}
	return nil
}

func (g *guarded) keep(lease int64) error {
	if g.known[lease] {
		return nil
	}
	if err := g.leases.own(g.ctx, g.of.Name, lease); err != nil {
		return err
	}
	if len(g.known) < leasesMax {
		if g.known == nil {
			g.known = map[int64]bool{}
		}
		g.known[lease] = true
	}
	return nil
}

func (g *guarded) mayWatch(c *pb.WatchCreateRequest) error {
	s, err := scopeOf(g.of.Name, c.Key, c.RangeEnd)
	if err != nil {
		return g.refuse(g.of.Name, err.Error())
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.asked)+len(g.watches) >= watchesMax {
		return g.refuse(g.of.Name, "watch more prefixes than there are services")
	}
	g.asked = append(g.asked, &watching{scope: s, after: max(0, c.StartRevision-1)})
	return nil
}

// SendMsg drops the changes that the member has no right to see. A watch that misses changes is
// silent, so that its client does not continue behind them elsewhere.
func (g *guarded) SendMsg(m any) error {
	if r, ok := m.(*pb.WatchResponse); ok && !g.of.Server && !g.passes(r) {
		return nil
	}
	return g.ServerStream.SendMsg(m)
}

// passes reports whether the member gets a response of a watch.
func (g *guarded) passes(r *pb.WatchResponse) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r.Created {
		w := g.asked[0] // etcd confirms watches in order
		g.asked = g.asked[1:]
		if !r.Canceled {
			g.watches[r.WatchId] = w
			g.begin(w)
		}
		return true
	}
	w := g.watches[r.WatchId]
	if w == nil || !w.scope.bound() {
		return true
	}
	if r.Canceled {
		g.leave(r.WatchId)
		return true
	}
	if may, err := g.concerns(g.of.Name, w.scope.of, 0); err != nil || !may {
		if len(r.Events) > 0 {
			g.refusals.withheld(g.of.Name, string(w.scope.prefix))
		}
		g.lapse(w)
	}
	return !w.lapsed
}

// begin decides whether a new watch continues the reads of its member. The caller holds the lock.
func (g *guarded) begin(w *watching) {
	if !w.scope.bound() {
		return
	}
	switch had, err := g.concerns(g.of.Name, w.scope.of, w.after); {
	case errors.Is(err, mvcc.ErrCompacted):
		g.end(errRegained)
	case err != nil || !had:
		g.lapse(w)
	}
}

// leave forgets a watch that has ended. The caller holds the lock.
func (g *guarded) leave(id int64) {
	w := g.watches[id]
	delete(g.watches, id)
	if !w.lapsed {
		return
	}
	for _, other := range g.watches {
		if other.lapsed && other.scope.of == w.scope.of {
			return
		}
	}
	g.lapsed.drop(w.scope.of, g)
}

// lapse notes that a watch misses changes. The caller holds the lock.
func (g *guarded) lapse(w *watching) {
	if !w.lapsed {
		w.lapsed = true
		g.lapsed.add(w.scope.of, g)
	}
	g.renew(w.scope.of)
}

// renew ends the stream if its member may read a service now.
func (g *guarded) renew(s pando.ServiceKey) {
	if may, err := g.concerns(g.of.Name, s, 0); err == nil && may {
		g.end(errRegained)
	}
}

// forget removes the stream from the lapsed ones.
func (g *guarded) forget() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, w := range g.watches {
		if w.lapsed {
			g.lapsed.drop(w.scope.of, g)
		}
	}
}

// lapsed are the streams with a watch that misses changes, by service. Each is looked at when the
// endpoints of the service change. Honest members have few: a host may keep the state of a service
// that has moved away.
type lapsed struct {
	mu sync.Mutex
	of map[pando.ServiceKey]map[*guarded]bool // at most watchesMax for each stream
}

func (l *lapsed) add(s pando.ServiceKey, g *guarded) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of == nil {
		l.of = map[pando.ServiceKey]map[*guarded]bool{}
	}
	if l.of[s] == nil {
		l.of[s] = map[*guarded]bool{}
	}
	l.of[s][g] = true
}

func (l *lapsed) drop(s pando.ServiceKey, g *guarded) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if delete(l.of[s], g); len(l.of[s]) == 0 {
		delete(l.of, s)
	}
}

// waiting returns the streams that miss changes of a service. "": of any service.
func (l *lapsed) waiting(s pando.ServiceKey) (all map[*guarded][]pando.ServiceKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all = map[*guarded][]pando.ServiceKey{}
	note := func(s pando.ServiceKey) {
		for g := range l.of[s] {
			all[g] = append(all[g], s)
		}
	}
	if (s != pando.ServiceKey{}) {
		note(s)
		return all
	}
	for s := range l.of {
		note(s)
	}
	return all
}

// followRights looks at lapsed watches when the endpoints of their service change, until ctx ends.
func (g gate) followRights(ctx context.Context, clock pando.Clock, r *Registry) {
	look := func(s pando.ServiceKey) {
		for stream, services := range g.lapsed.waiting(s) {
			for _, s := range services {
				stream.renew(s)
			}
		}
	}
	for ctx.Err() == nil {
		now, err := g.store.from.now()
		if err != nil {
			_ = pando.Sleep(ctx, clock, time.Second)
			continue
		}
		look(pando.ServiceKey{})
		for b := range r.Watch(ctx, pando.KindEndpoints.Under(), pando.StoreRevision(now)) {
			for _, c := range b.Changes {
				if s, ok := c.Key.Service(); ok {
					look(s)
				}
			}
		}
		_ = pando.Sleep(ctx, clock, time.Second)
	}
}
