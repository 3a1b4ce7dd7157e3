package world

import (
	"context"
	"errors"
	"time"

	"pando.run/pando"
)

// Follow passes every record under a prefix to take until ctx ends. The first batch is a snapshot:
// reset is true, and earlier records are void. Then every commit follows in order. Follow starts
// again when the store was out of reach or its history is compacted.
func Follow(ctx context.Context, c pando.Clock, r pando.Registry, prefix pando.Key,
	take func(b pando.Batch, reset bool)) error {
	return again(ctx, c, func(arrived func()) error {
		return followOnce(ctx, r, prefix, func(b pando.Batch, reset bool) {
			arrived()
			take(b, reset)
		})
	})
}

// again calls once until ctx ends or once fails for good, with a wait that doubles until a record
// has arrived.
func again(ctx context.Context, c pando.Clock, once func(arrived func()) error) error {
	wait := 10 * time.Millisecond
	for {
		err := once(func() { wait = 10 * time.Millisecond })
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !errors.Is(err, pando.ErrUnavailable) && !errors.Is(err, pando.ErrCompacted) {
			return err
		}
		if err := pando.Sleep(ctx, c, wait); err != nil {
			return err
		}
		wait = min(2*wait, time.Second)
	}
}

func followOnce(
	ctx context.Context, r pando.Registry, prefix pando.Key, take func(pando.Batch, bool),
) error {
	s, err := r.Snapshot(ctx, prefix)
	if err != nil {
		return err
	}
	take(pando.Batch{Changes: s.Records, Revision: s.Revision}, true)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	after := s.Revision
	for {
		err := pando.ErrUnavailable
		for b := range r.Watch(ctx, prefix, after) {
			if b.Err != nil {
				err = b.Err
				break
			}
			after = b.Revision
			take(b, false)
		}
		if ctx.Err() != nil || !errors.Is(err, pando.ErrUnavailable) {
			return err
		}
		// The store is out of reach. Earlier records stay true, so the watch continues from its
		// last revision. The snapshot tests whether the store is back.
		if _, err := r.Snapshot(ctx, pando.Root+pando.Key(pando.KindLeader)); err != nil {
			return err
		}
	}
}
