package world

import (
	"context"
	"errors"
	"time"

	"pando.run/pando"
)

// Follow keeps take informed of everything under a prefix until ctx ends: first the whole (reset is true, and what was
// known before is void), then every commit in order. It begins anew by itself when the store was out of reach or its
// history is compacted.
func Follow(ctx context.Context, c pando.Clock, r pando.Registry, prefix pando.Key, take func(b pando.Batch, reset bool)) error {
	wait := 10 * time.Millisecond
	for {
		err := followOnce(ctx, r, prefix, func(b pando.Batch, reset bool) {
			wait = 10 * time.Millisecond
			take(b, reset)
		})
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

func followOnce(ctx context.Context, r pando.Registry, prefix pando.Key, take func(pando.Batch, bool)) error {
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
		// Out of reach: what we know stays true until we hear more, so the watch goes on from where it was. A snapshot tells
		// whether the store is back at all.
		if _, err := r.Snapshot(ctx, pando.Root+pando.Key(pando.KindLeader)); err != nil {
			return err
		}
	}
}
