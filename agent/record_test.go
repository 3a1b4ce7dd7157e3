package agent

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"pando.run/pando"
)

// refusing is a registry that refuses records of instances with an error. commits counts the
// attempts.
type refusing struct {
	pando.Registry
	err     error
	on      atomic.Bool
	commits atomic.Int64
}

func (r *refusing) Commit(ctx context.Context, t pando.Txn) (pando.StoreRevision, error) {
	for _, v := range t.Put {
		if _, ok := v.(pando.Instance); ok && r.on.Load() {
			r.commits.Add(1)
			return 0, fmt.Errorf("commit: %w", r.err)
		}
	}
	return r.Registry.Commit(ctx, t)
}

// A step that can never be recorded is dropped at once. After a temporary error, the recorder
// retries with growing waits and records the step.
func TestARecorderGivesUpWhatCannotPass(t *testing.T) {
	for _, c := range []struct {
		err         error
		least, most int64
		recorded    bool
	}{
		{pando.ErrTooLarge, 1, 2, false},
		{pando.ErrForbidden, 1, 2, false},
		{pando.ErrStoreFull, 10, 40, true},
		{pando.ErrFenced, 10, 40, true},
		{pando.ErrConflict, 10, 80, true},
	} {
		t.Run(c.err.Error(), func(t *testing.T) {
			onBench(t, func(b *bench) {
				b.serving("web-1", 1)
				b.pass(time.Second)
				r := &refusing{Registry: b.registry, err: c.err}
				b.through = r
				b.restart()
				r.on.Store(true)
				b.steering.Open(web)
				b.steering.Open(web)
				b.drain("web-1", false)
				b.steering.End("web-1")
				b.steering.End("web-1")
				b.pass(25 * time.Second)
				if n := r.commits.Load(); n < c.least || n > c.most {
					t.Errorf("%d attempts in 25 s, want %d to %d", n, c.least, c.most)
				}
				r.on.Store(false)
				b.pass(4 * time.Second)
				if got := b.world().Instances["web-1"].V.Phase == pando.PhaseDrained; got != c.recorded {
					t.Errorf("recorded: %t, want %t", got, c.recorded)
				}
			})
		})
	}
}
