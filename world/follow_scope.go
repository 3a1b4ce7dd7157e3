package world

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"pando.run/pando"
)

// Scope is the part of the store that one process follows: some prefixes for ever, and others while
// they concern it.
type Scope struct {
	// Fixed are followed all the time.
	Fixed []pando.Key
	// Once are read with each snapshot and not followed.
	Once []pando.Key
	// Wanted returns the other prefixes to follow now. fixed has the records of Fixed at a
	// snapshot, which Take has not received yet; it is nil after a change.
	Wanted func(fixed []pando.Record) map[pando.Key]bool
	// Keys returns the keys of the process's records under a prefix. Records that are not in the
	// store any more are taken as deleted when a prefix is followed anew.
	Keys func(prefix pando.Key) []pando.Key
	// Left drops the records under a prefix that is followed no longer.
	Left func(prefix pando.Key)
	// Take receives the records, and Odd the odd errors of the store. See Follow.
	Take func(b pando.Batch, reset bool)
	Odd  func(error)
}

// FollowScope is Follow for a scope. The first batch is a snapshot of all of it. Then every change
// follows. Changes under one prefix arrive in order. Changes of one commit under several prefixes
// arrive in several batches.
func FollowScope(ctx context.Context, c pando.Clock, r pando.Registry, s Scope) error {
	return again(ctx, c, []func(error){s.Odd}, func(arrived func()) error {
		f := &following{
			scope: s, clock: c, registry: r, arrived: arrived, events: make(chan event),
			watches: map[pando.Key]*watched{},
		}
		return f.run(ctx)
	})
}

// following is one run of FollowScope, from a snapshot to an error.
type following struct {
	scope    Scope
	clock    pando.Clock
	registry pando.Registry
	arrived  func()
	events   chan event
	watches  map[pando.Key]*watched
}

// watched is one prefix with the revision of the newest record under it.
type watched struct {
	after pando.StoreRevision
	stop  context.CancelFunc
	wait  time.Duration // before the next watch, if this one fails
}

// event is a batch of one watch. A prefix may have had other watches before.
type event struct {
	prefix pando.Key
	of     *watched
	pando.Batch
}

func (f *following) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := f.snapshot(ctx); err != nil {
		return err
	}
	for {
		if err := f.adjust(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e := <-f.events:
			if err := f.take(ctx, e); err != nil {
				return err
			}
		}
	}
}

// read returns the records under a prefix, and begins to follow it behind them.
func (f *following) read(ctx context.Context, prefix pando.Key) (pando.Snapshot, error) {
	s, err := f.registry.Snapshot(ctx, prefix)
	if err == nil {
		f.watch(ctx, prefix, s.Revision, 0)
	}
	return s, err
}

// snapshot reads the whole scope and passes it on as one batch.
func (f *following) snapshot(ctx context.Context) error {
	all := pando.Batch{}
	add := func(s pando.Snapshot) {
		all.Changes = append(all.Changes, s.Records...)
		if all.Revision == 0 || s.Revision < all.Revision {
			all.Revision = s.Revision
		}
	}
	for _, p := range f.scope.Once {
		s, err := f.registry.Snapshot(ctx, p)
		if err != nil {
			return err
		}
		add(s)
	}
	for _, p := range f.scope.Fixed {
		s, err := f.read(ctx, p)
		if err != nil {
			return err
		}
		add(s)
	}
	for _, p := range slices.Sorted(maps.Keys(f.scope.Wanted(all.Changes))) {
		s, err := f.read(ctx, p)
		if err != nil {
			return err
		}
		add(s)
	}
	f.arrived()
	f.scope.Take(all, true)
	return nil
}

// adjust begins the watches of newly wanted prefixes and ends those of unwanted ones.
func (f *following) adjust(ctx context.Context) error {
	wanted := f.scope.Wanted(nil)
	if wanted == nil {
		return nil // as before
	}
	for p, w := range f.watches {
		if !wanted[p] && !slices.Contains(f.scope.Fixed, p) {
			w.stop()
			delete(f.watches, p)
			f.scope.Left(p)
		}
	}
	for _, p := range slices.Sorted(maps.Keys(wanted)) {
		if f.watches[p] != nil {
			continue
		}
		s, err := f.read(ctx, p)
		if err != nil {
			return err
		}
		f.scope.Take(f.fresh(p, s), false)
	}
	return nil
}

// fresh returns a first snapshot of a prefix as a batch. Records that this process has and the
// store has not were deleted before.
func (f *following) fresh(prefix pando.Key, s pando.Snapshot) pando.Batch {
	there := map[pando.Key]bool{}
	for _, r := range s.Records {
		there[r.Key] = true
	}
	b := pando.Batch{Changes: s.Records, Revision: s.Revision}
	for _, k := range f.scope.Keys(prefix) {
		if !there[k] {
			b.Changes = append(b.Changes, pando.Record{Key: k, Modified: s.Revision})
		}
	}
	return b
}

// watch sends the changes under a prefix to events until its stop or an error. It begins after a
// wait.
func (f *following) watch(
	ctx context.Context, prefix pando.Key, after pando.StoreRevision, wait time.Duration,
) {
	ctx, stop := context.WithCancel(ctx)
	w := &watched{after: after, stop: stop, wait: max(waitMin, min(2*wait, awayWaitMax))}
	f.watches[prefix] = w
	go func() {
		defer stop()
		send := func(b pando.Batch) bool {
			select {
			case f.events <- event{prefix, w, b}:
				return b.Err == nil
			case <-ctx.Done():
				return false
			}
		}
		if wait > 0 && pando.Sleep(ctx, f.clock, jittered(wait, f.clock.Now())) != nil {
			return
		}
		for b := range f.registry.Watch(ctx, prefix, after) {
			if !send(b) {
				return
			}
		}
		send(pando.Batch{Err: fmt.Errorf("the store is %w", pando.ErrUnavailable)})
	}()
}

// take passes a batch on. After an error it continues the watch if the store is back.
func (f *following) take(ctx context.Context, e event) error {
	w := f.watches[e.prefix]
	if w == nil || w != e.of {
		return nil // sent before the prefix was left
	}
	if e.Err == nil {
		w.after, w.wait = max(w.after, e.Revision), waitMin
		f.arrived()
		f.scope.Take(e.Batch, false)
		return nil
	}
	if !errors.Is(e.Err, pando.ErrUnavailable) {
		return e.Err
	}
	// Earlier records stay true, so the watch continues from its last revision. The snapshot tests
	// whether the store is back. It may answer reads and fail every watch, so the next watch waits
	// too.
	if _, err := f.registry.Snapshot(ctx, pando.KindLeader.Under()); err != nil {
		return err
	}
	w.stop()
	f.watch(ctx, e.prefix, w.after, w.wait)
	return nil
}
