package control

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"pando.run/pando"
	queue "pando.run/pando/access/turns"
	"pando.run/pando/control/mirror"
	"pando.run/pando/control/status"
	"pando.run/pando/control/stream"
	"pando.run/pando/world"
)

// streams passes changes of the store, and logs, counters and states of the hosts, to operators.
type streams struct {
	mirror   *mirror.Mirror
	statuses *status.Reader
	peers    pando.Peers
	counters *counters
	newest   *stream.Log
	reading  *queue.Queue[pando.Tenant] // of listeners that read older changes
}

func newStreams(v *mirror.Mirror, st *status.Reader, n *counters, p pando.Peers) *streams {
	return &streams{
		mirror: v, statuses: st, peers: p, counters: n, newest: stream.NewLog(logBytesMax),
		reading: queue.New[pando.Tenant](catchUpTurns),
	}
}

// The bounds of listeners.
const (
	logBytesMax  = 8 << 20          // of changes in memory, for all listeners together
	pieceBytes   = 1 << 20          // of older changes that one listener reads at once
	catchUpWait  = 10 * time.Second // for one of those places
	catchUpLimit = 30 * time.Second // for the piece of older changes
)

// catchUpTurns are the listeners that read older changes at the same time.
var catchUpTurns = queue.Bound{Total: 16, Each: 4, Reserve: 4}

// Watch implements pando.Operators. Its first event is a bookmark. A caller that starts with "from
// now on" thus gets a revision to resume from, even if the stream breaks before the first change.
func (c *streams) Watch(ctx context.Context, after pando.StoreRevision) <-chan pando.Change {
	c.mirror.Mu.Lock()
	if after == 0 {
		after = c.mirror.World.Seen
	}
	c.mirror.Mu.Unlock()
	out := make(chan pando.Change, 64)
	go func() {
		defer close(out)
		l := listener{streams: c, out: out, after: after}
		first := pando.Change{Revision: after, Kind: pando.KindBookmark}
		if err := l.send(ctx, first); err != nil {
			return
		}
		if err := l.listen(ctx); err != nil && ctx.Err() == nil {
			_ = l.send(ctx, pando.Change{Revision: l.after, Err: err})
		}
	}()
	return out
}

// listener is one caller of Watch: its place in the log of the newest changes.
type listener struct {
	streams *streams
	out     chan<- pando.Change
	after   pando.StoreRevision // the newest commit that was sent whole
}

func (l *listener) send(ctx context.Context, all ...pando.Change) error {
	for _, one := range all {
		select {
		case l.out <- one:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// listen sends every commit after the listener's revision, until ctx ends or the listener is behind
// the log. It reads older changes from the store first.
func (l *listener) listen(ctx context.Context) error {
	for caughtUp := false; ; {
		next, news, place := l.streams.newest.Next(l.after)
		switch {
		case next != nil:
			if err := l.send(ctx, next.Changes...); err != nil {
				return err
			}
			l.after, caughtUp = next.Revision, true
		case place == stream.Behind && caughtUp:
			return fmt.Errorf("%w: this listener is more than %d MiB of changes behind and is let go; "+
				"resume after the last event", pando.ErrUnavailable, logBytesMax>>20)
		case place == stream.Behind:
			if err := l.catchUp(ctx); err != nil {
				return err
			}
		default:
			caughtUp = caughtUp || place == stream.Within
			select {
			case <-news:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

// catchUp sends a piece of the changes after the listener's revision, which are older than the log.
// It holds one of few places while it reads, and none while it sends.
func (l *listener) catchUp(ctx context.Context) error {
	piece, err := l.older(ctx)
	for _, one := range piece {
		if err := l.send(ctx, one.Changes...); err != nil {
			return err
		}
		l.after = one.Revision
	}
	return err
}

// older reads changes after the listener's revision from the store, up to the beginning of the log,
// or a piece of them.
func (l *listener) older(ctx context.Context) (piece []stream.Commit, err error) {
	done, err := l.place(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	late, stop := l.streams.mirror.Clock.After(catchUpLimit)
	defer stop()
	bytes, in := 0, l.streams.mirror.Registry.Watch(ctx, pando.Root, l.after)
	for {
		select {
		case b, ok := <-in:
			if !ok {
				return piece, fmt.Errorf("%w: resume after the last event", pando.ErrUnavailable)
			}
			if b.Err != nil {
				return piece, b.Err
			}
			one := stream.NewCommit(b, changes(b))
			piece, bytes = append(piece, one), bytes+one.Bytes
			if bytes >= pieceBytes || l.streams.newest.Covers(b.Revision) {
				return piece, nil
			}
		case <-late:
			return piece, fmt.Errorf("%w: older changes have not come for %s; resume after the last event",
				pando.ErrUnavailable, catchUpLimit)
		case <-ctx.Done():
			return piece, ctx.Err()
		}
	}
}

// place waits for a place among the listeners that read older changes. The tenant of a token has a
// share of them.
func (l *listener) place(ctx context.Context) (done func(), err error) {
	own, cancel := context.WithCancel(ctx)
	defer cancel()
	late, stop := l.streams.mirror.Clock.After(catchUpWait)
	defer stop()
	go func() {
		select {
		case <-late:
			cancel()
		case <-own.Done():
		}
	}()
	take := l.streams.reading.TakeAsOperator
	if t, ok := pando.TokenOf(ctx); ok {
		take = func(ctx context.Context, waits func(string)) (func(), error) {
			return l.streams.reading.Take(ctx, t.Tenant, waits)
		}
	}
	done, err = take(own, nil)
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("%w: %d listeners read older changes already, or %d of one tenant; resume after "+
			"the last event", pando.ErrUnavailable, catchUpTurns.Total, catchUpTurns.Each)
	}
	return done, err
}

// feed keeps the log of the newest changes, by one watch of its own, until ctx ends. Control follows
// the store by another.
func (c *streams) feed(ctx context.Context) {
	for ctx.Err() == nil {
		c.mirror.Mu.Lock()
		seen, news := c.mirror.World.Seen, c.mirror.Changed
		c.mirror.Mu.Unlock()
		if seen == 0 {
			select {
			case <-news:
			case <-ctx.Done():
			}
			continue
		}
		err := c.feedFrom(ctx, seen)
		if ctx.Err() == nil && !errors.Is(err, pando.ErrCompacted) {
			c.mirror.Log.Warn("the changes for listeners cannot be read; it is tried again", "error", err)
		}
		_ = pando.Sleep(ctx, c.mirror.Clock, feedWait)
	}
}

// feedFrom keeps the log of the changes after a revision, until an error.
func (c *streams) feedFrom(ctx context.Context, after pando.StoreRevision) error {
	c.newest.Begin(after)
	return world.Continue(ctx, c.mirror.Clock, c.mirror.Registry, pando.Root, after, func(b pando.Batch) {
		if len(b.Changes) > 0 {
			c.newest.Add(stream.NewCommit(b, changes(b)))
		}
	})
}

// feedWait is the wait after changes that cannot be continued.
const feedWait = time.Second

func changes(b pando.Batch) []pando.Change {
	if b.Err != nil {
		return []pando.Change{{Revision: b.Revision, Err: b.Err}}
	}
	var out []pando.Change
	for _, r := range b.Changes {
		change := pando.Change{
			Revision: b.Revision, Kind: r.Key.Kind(), Key: r.Key, Deleted: r.Value == nil, More: true,
		}
		if change.Kind == pando.KindLeader || change.Kind == pando.KindSecret ||
			change.Kind == pando.KindTenant || change.Kind == pando.KindToken ||
			change.Kind == pando.KindBill || change.Kind == pando.KindMark ||
			change.Kind == pando.KindRest {
			continue
		}
		if r.Value != nil {
			v, err := world.DecodeAny(r)
			if err != nil || v == nil {
				continue
			}
			change.Value = v
		}
		out = append(out, change)
	}
	if len(out) > 0 {
		out[len(out)-1].More = false
	}
	return out
}

// Counters implements pando.Operators.
func (c *streams) Counters(
	ctx context.Context, s pando.ServiceKey,
) ([]pando.EndpointCounters, error) {
	if _, err := c.statuses.Service(ctx, s); err != nil {
		return nil, err
	}
	return slices.Clone(c.counters.recent(ctx)[s]), nil
}

// StateLog implements pando.Operators.
func (c *streams) StateLog(
	ctx context.Context, s pando.ServiceKey, most int,
) ([]pando.StateCommit, error) {
	h, err := c.mirror.StateHost(s)
	if err != nil {
		return nil, err
	}
	return c.peers.StateLog(ctx, h, s, most)
}

// State implements pando.Operators. It forwards /state/NAME.git/… and /state/TENANT/NAME.git/… to
// the host that has the state.
func (c *streams) State() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, _, ok := strings.Cut(strings.TrimPrefix(r.URL.Path, "/state/"), ".git/")
		s, err := pando.ParseServiceKey(name)
		if !ok || err != nil {
			http.Error(w, "want /state/NAME.git or /state/TENANT/NAME.git", http.StatusNotFound)
			return
		}
		h, err := c.mirror.StateHost(s)
		switch {
		case errors.Is(err, pando.ErrNotFound):
			http.Error(w, err.Error(), http.StatusNotFound)
		case err != nil:
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		default:
			c.peers.State(h).ServeHTTP(w, r)
		}
	})
}
