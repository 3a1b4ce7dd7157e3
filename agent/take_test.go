package agent

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/sim"
)

// slowReader is a registry with watches that end when a test wants. The follower then reads all
// again. After the read of a prefix, and before its records arrive, late runs once.
type slowReader struct {
	*sim.Registry
	prefix pando.Key
	late   func()
	armed  atomic.Bool
	cut    chan struct{}
}

func (r *slowReader) Snapshot(ctx context.Context, prefix pando.Key) (pando.Snapshot, error) {
	s, err := r.Registry.Snapshot(ctx, prefix)
	if prefix == r.prefix && r.armed.CompareAndSwap(true, false) {
		r.late()
	}
	return s, err
}

func (r *slowReader) Watch(
	ctx context.Context, prefix pando.Key, after pando.StoreRevision,
) <-chan pando.Batch {
	out, in := make(chan pando.Batch), r.Registry.Watch(ctx, prefix, after)
	go func() {
		defer close(out)
		for {
			var b pando.Batch
			select {
			case b = <-in:
			case <-r.cut:
				b = pando.Batch{Err: pando.ErrCompacted}
			case <-ctx.Done():
				return
			}
			select {
			case out <- b:
			case <-ctx.Done():
				return
			}
			if b.Err != nil {
				return
			}
		}
	}()
	return out
}

// An answer of control brings an instance while the agent reads the store anew. The snapshot is
// older and lacks the instance. The instance starts, and nothing of it is removed.
func TestAnAnswerDuringASnapshotIsNotUndone(t *testing.T) {
	for name, deleted := range map[string]bool{"it stays": false, "it was deleted": true} {
		t.Run(name, func(t *testing.T) {
			onBench(t, func(b *bench) {
				r := &slowReader{Registry: b.registry, prefix: pando.InstancesOn(web, "h1"),
					cut: make(chan struct{})}
				b.through = r
				b.restart()
				b.serving("web-1", 1) // so that the host follows the service
				r.late = func() {
					i := pando.Instance{
						ID: "web-2", Service: web, Host: "h1", Revision: 1, Weight: 100,
						Phase: pando.PhasePlaced, Reason: "test", Born: time.Now(), Since: time.Now(),
					}
					at, err := b.commit(b.ctx, pando.Txn{Put: []pando.Stored{i}})
					b.ok(err)
					record := pando.Record{
						Key: i.Key(), Value: mustEncode(t, i), Created: at, Modified: at,
					}
					b.agent.learn([]pando.Record{record})
					if deleted {
						_, err := b.commit(b.ctx, pando.Txn{Delete: []pando.Key{i.Key()}})
						b.ok(err)
					}
				}
				r.armed.Store(true)
				r.cut <- struct{}{}
				b.pass(10 * time.Second)
				if r.armed.Load() {
					t.Fatal("the agent has not read its instances again")
				}
				if deleted {
					if n := len(b.sandboxes.All()); n != 1 {
						t.Errorf("%d sandboxes are there, want that of web-1", n)
					}
					return
				}
				b.ok(b.agent.self.Ready(b.ctx, "web-2"))
				b.phase("web-2", pando.PhaseInRotation)
				b.phase("web-1", pando.PhaseInRotation)
			})
		})
	}
}

// An order to end waits for nothing that a start needs: the spec of the instance never arrives.
func TestAnInstanceWithoutItsSpecObeysAnEnd(t *testing.T) {
	onBench(t, func(b *bench) {
		b.serving("web-1", 1) // its service concerns this host
		i := pando.Instance{ID: "web-9", Service: web, Host: "h1", Revision: 9, Weight: 100,
			Phase: pando.PhasePlaced, Born: time.Now(), Since: time.Now()}
		b.put(i)
		if _, err := b.agent.crews.Runner("web-9"); err == nil {
			t.Fatal("an instance without its spec has a runner")
		}
		b.put(i.Become(pando.PhaseDraining, time.Now(), "the service is being removed"))
		b.pass(2 * time.Second)
		if _, there := b.world().Instances["web-9"]; there {
			t.Errorf("it is still there: %+v", b.world().Instances["web-9"].V)
		}
	})
}
