package world

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pando.run/pando"
)

// The wait after a store that did not answer, and after one that answered with an odd error,
// doubles from the first of these up to one of the others.
const (
	waitMin     = 10 * time.Millisecond
	awayWaitMax = time.Second
	oddWaitMax  = 5 * time.Second
)

// Follow passes every record under a prefix to take until ctx ends. The first batch is a snapshot:
// reset is true, and earlier records are void. Then every commit follows in order. Follow starts
// again after every error of the store, with a growing wait (jittered). It passes errors other than
// ErrUnavailable and ErrCompacted to odd, the first of each run of equal ones.
func Follow(ctx context.Context, c pando.Clock, r pando.Registry, prefix pando.Key,
	take func(b pando.Batch, reset bool), odd ...func(error)) error {
	return again(ctx, c, odd, func(arrived func()) error {
		return followOnce(ctx, c, r, prefix, func(b pando.Batch, reset bool) {
			arrived()
			take(b, reset)
		})
	})
}

// again calls once until ctx ends, with a wait that grows until a record has arrived.
func again(
	ctx context.Context, c pando.Clock, odd []func(error), once func(arrived func()) error,
) error {
	wait, said := waitMin, ""
	for {
		err := once(func() { wait, said = waitMin, "" })
		if ctx.Err() != nil {
			return ctx.Err()
		}
		most := awayWaitMax
		if !errors.Is(err, pando.ErrUnavailable) && !errors.Is(err, pando.ErrCompacted) {
			most = oddWaitMax
			for _, f := range odd {
				if text := fmt.Sprint(err); text != said {
					said = text
					f(err)
				}
			}
		}
		if err := pando.Sleep(ctx, c, jittered(wait, c.Now())); err != nil {
			return err
		}
		wait = min(2*wait, most)
	}
}

// jittered lengthens a wait by up to a half. After an outage the processes of a cluster then do not
// all read the whole store at one moment. The digits of the clock below a millisecond differ by
// process, and repeat in a simulation.
func jittered(wait time.Duration, now time.Time) time.Duration {
	return wait + wait/2*time.Duration(now.Nanosecond()%1_000_000)/1_000_000
}

// followOnce follows a prefix from a snapshot to an error.
func followOnce(
	ctx context.Context, c pando.Clock, r pando.Registry, prefix pando.Key,
	take func(pando.Batch, bool),
) error {
	s, err := r.Snapshot(ctx, prefix)
	if err != nil {
		return err
	}
	take(pando.Batch{Changes: s.Records, Revision: s.Revision}, true)
	return Continue(ctx, c, r, prefix, s.Revision, func(b pando.Batch) { take(b, false) })
}

// Continue passes every commit under a prefix after a revision to take, in order. It resumes while
// the store is out of reach, with a growing wait (jittered). It returns every other error, and that
// of ctx.
func Continue(
	ctx context.Context, c pando.Clock, r pando.Registry, prefix pando.Key,
	after pando.StoreRevision, take func(pando.Batch),
) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wait := waitMin
	for {
		err := fmt.Errorf("the store is %w", pando.ErrUnavailable)
		for b := range r.Watch(ctx, prefix, after) {
			if b.Err != nil {
				err = b.Err
				break
			}
			after, wait = b.Revision, waitMin
			take(b)
		}
		if ctx.Err() != nil || !errors.Is(err, pando.ErrUnavailable) {
			return err
		}
		// The store is out of reach. Earlier records stay true, so the watch continues from its
		// last revision. The snapshot tests whether the store is back. It may answer reads and fail
		// every watch, so the next watch waits too.
		if _, err := r.Snapshot(ctx, pando.Root+pando.Key(pando.KindLeader)); err != nil {
			return err
		}
		if err := pando.Sleep(ctx, c, jittered(wait, c.Now())); err != nil {
			return err
		}
		wait = min(2*wait, awayWaitMax)
	}
}
