package agent

import (
	"context"
	"fmt"
	"maps"
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
		b.agent.self.Control = deciding(func(ctx context.Context, i pando.Intent) ([]pando.Record, error) {
			asks++
			if i.By != (pando.Asker{Kind: pando.AskerTraffic, Name: "h1"}) || i.Reason != "a packet came while no instance ran" {
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
		b.ok(b.agent.self.Ready(b.ctx, "web-1"))
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
		b.agent.self.Control = deciding(func(context.Context, pando.Intent) ([]pando.Record, error) {
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

// knocked is a steering whose first packets a test sends.
type knocked struct {
	pando.Steering
	services chan pando.ServiceKey
}

func (k knocked) Knocks() <-chan pando.ServiceKey { return k.services }

// A flood of first packets to the services of one tenant leaves asks to another tenant and to
// operators.
func TestATenantLeavesKnocksForOthers(t *testing.T) {
	onBench(t, func(b *bench) {
		b.stop()
		packets := make(chan pando.ServiceKey)
		b.front = knocked{b.steering, packets}
		b.start()
		asked := map[pando.Tenant]int{}
		b.agent.self.Control = deciding(func(ctx context.Context, i pando.Intent) ([]pando.Record, error) {
			asked[i.Service.Tenant]++
			<-ctx.Done() // control does not answer
			return nil, ctx.Err()
		})
		send := func(tenant pando.Tenant, n int) {
			for at := range n {
				packets <- pando.ServiceKey{Tenant: tenant, Name: pando.ServiceName(fmt.Sprint("s", at))}
				synctest.Wait()
			}
		}
		const each = 64 // services of one tenant that are woken at a time
		send("acme", 2*each)
		send("bank", 5)
		send(pando.DefaultTenant, 5)
		want := map[pando.Tenant]int{"acme": each, "bank": 5, pando.DefaultTenant: 5}
		if !maps.Equal(asked, want) {
			t.Errorf("asked for %v, want %v", asked, want)
		}
		b.pass(time.Minute)
		send("acme", 1)
		if asked["acme"] != each+1 {
			t.Errorf("after the answers, acme has %d asks", asked["acme"])
		}
	})
}
