package agent

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"pando.run/pando"
)

// brief is a registry that takes each lease of a host away at once.
type brief struct {
	pando.Registry
	joins atomic.Int32
}

func (r *brief) Join(
	ctx context.Context, h pando.Host, ttl time.Duration,
) (pando.Fence, <-chan struct{}, error) {
	r.joins.Add(1)
	f, _, err := r.Registry.Join(ctx, h, ttl)
	lost := make(chan struct{})
	close(lost)
	return f, lost, err
}

// A store that takes each lease away at once gets few joins, and none without a pause. A lease that lived
// long is renewed at once.
func TestALeaseThatIsLostAtOnceIsRenewedWithPauses(t *testing.T) {
	onBench(t, func(b *bench) {
		r := &brief{Registry: b.registry}
		b.through = r
		b.restart()
		b.pass(20 * time.Second)
		if n := r.joins.Load(); n < 10 || n > 16 {
			t.Errorf("%d joins in 20 s", n)
		}
	})
	if wait := rejoinWait(rejoinWaitMax, Lease); wait != 0 {
		t.Errorf("after a long life of the lease the next join waits for %s", wait)
	}
}
