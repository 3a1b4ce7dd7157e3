package agent

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
)

// fromZero makes the service of the bench one that traffic starts.
func (b *bench) fromZero() {
	r := b.world().Revisions[web][1].V
	r.Spec.Scale = pando.Scale{Zero: true, Max: 3, IdleSeconds: 60}
	b.put(r)
	b.put(b.world().Services[web].V)
}

func TestAPacketStartsTheFirstInstance(t *testing.T) {
	onBench(t, func(b *bench) {
		b.fromZero()
		asks := 0
		b.agent.Control = deciding(func(ctx context.Context, i pando.Intent) ([]pando.Record, error) {
			asks++
			if i.By != (pando.Asker{Kind: pando.AskerTraffic, Name: "h1"}) || i.Reason != knocking {
				t.Errorf("%s asks: %s", i.By, i.Reason)
			}
			return b.grantAs(ctx, i, 0, "web-1")
		})
		b.steering.Knock(web)
		b.steering.Knock(web) // the ask of the first one is on its way
		synctest.Wait()
		if asks != 1 || len(b.sandboxes.All()) != 1 {
			t.Fatalf("%d asks, %d sandboxes", asks, len(b.sandboxes.All()))
		}
		b.ok(b.agent.Ready(b.ctx, "web-1"))
		synctest.Wait()
		b.phase("web-1", pando.PhaseInRotation)
		b.steering.Knock(web)
		synctest.Wait()
		if asks != 1 {
			t.Errorf("%d asks although an instance takes flows", asks)
		}
	})
}

// A refused knock is asked again a second later at the earliest.
func TestRefusedKnocksAreFew(t *testing.T) {
	onBench(t, func(b *bench) {
		b.fromZero()
		asks := 0
		b.agent.Control = deciding(func(context.Context, pando.Intent) ([]pando.Record, error) {
			asks++
			return nil, pando.ErrRefused
		})
		for range 100 {
			b.steering.Knock(web)
			b.pass(time.Second / 20)
		}
		if asks < 4 || asks > 6 {
			t.Errorf("%d asks in five seconds of packets, want 5", asks)
		}
	})
}
