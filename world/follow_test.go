package world

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
)

// deaf answers every read and fails every watch at once.
type deaf struct {
	pando.Registry
	reads, watches atomic.Int64
}

func (d *deaf) Snapshot(context.Context, pando.Key) (pando.Snapshot, error) {
	d.reads.Add(1)
	return pando.Snapshot{Revision: 1}, nil
}

func (d *deaf) Watch(
	_ context.Context, _ pando.Key, after pando.StoreRevision,
) <-chan pando.Batch {
	d.watches.Add(1)
	c := make(chan pando.Batch, 1)
	c <- pando.Batch{Revision: after, Err: pando.ErrUnavailable}
	close(c)
	return c
}

// A store that answers reads and fails every watch is asked about once a second, and not without a
// pause: every process of a cluster would ask it.
func TestAWatchThatFailsAtOnceIsTriedAgainAfterAPause(t *testing.T) {
	ways := map[string]func(context.Context, pando.Registry) error{
		"a prefix": func(ctx context.Context, r pando.Registry) error {
			return Follow(ctx, wallClock{}, r, pando.Root, func(pando.Batch, bool) {})
		},
		"a scope": func(ctx context.Context, r pando.Registry) error {
			return FollowScope(ctx, wallClock{}, r, Scope{
				Fixed:  []pando.Key{pando.KindHost.Under(), pando.KindService.Under()},
				Wanted: func([]pando.Record) map[pando.Key]bool { return nil },
				Take:   func(pando.Batch, bool) {},
				Odd:    func(error) {},
			})
		},
	}
	for what, follow := range ways {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				d := &deaf{}
				_ = follow(ctx, d)
				synctest.Wait()
				if n := d.watches.Load(); n < 20 || n > 2*80 {
					t.Errorf("%d watches in a minute", n)
				}
				if n := d.reads.Load(); n > 2*80 {
					t.Errorf("%d reads in a minute", n)
				}
			})
		})
	}
}
