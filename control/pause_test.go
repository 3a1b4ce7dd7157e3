package control

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/sim"
	"pando.run/pando/world"
)

// stalledClock is the clock of a process that was paused: its timers did not run.
type stalledClock struct {
	sim.Clock
	ahead atomic.Int64
}

func (c *stalledClock) Now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// A pause of the server ends the leases of live hosts. They join again, and none of their services
// moves. A host that does not come back within one lease is away.
func TestAPauseOfTheServerMovesNothing(t *testing.T) {
	for name, back := range map[string]bool{"the host comes back": true, "the host is away": false} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { pauseServer(t, back) }) })
	}
}

func pauseServer(t *testing.T, back bool) {
	ctx, cancel := context.WithCancel(context.Background())
	registry, clock := sim.NewRegistry(1, 0), &stalledClock{}
	put := func(v ...pando.Stored) {
		t.Helper()
		if _, err := registry.Commit(ctx, pando.Txn{Put: v}); err != nil {
			t.Fatal(err)
		}
	}
	home := func() pando.HostName {
		now, err := registry.Snapshot(ctx, web.Key())
		w := world.New()
		if err != nil || w.Apply(now.Records, now.Revision) != nil {
			t.Fatal(err)
		}
		return w.Services[web].V.Home
	}
	h1, h2 := pando.Host{Name: "h1"}, pando.Host{Name: "h2", Slot: 1}
	put(h1, h2, pando.Service{ServiceKey: web, VIP4: pando.VIPs4.Addr().Next().Next(),
		VIP6:    pando.VIPs6.Addr().Next().Next(),
		Current: 1, Target: 1, Latest: 1, Phase: pando.ServiceServing, Home: "h1"},
		pando.Revision{
			Service: web, Number: 1, Spec: pando.Spec{Name: "web", Command: []string{"web"}}.WithDefaults(),
			State: pando.RevisionCurrent,
		},
		pando.Instance{ID: "web-1", Service: web, Host: "h1", Revision: 1, Weight: 100,
			Phase: pando.PhaseInRotation, Reason: "test", Born: time.Now(), Since: time.Now()})
	c := New(Config{Registry: registry, Peers: sim.NewPeers(), Clock: clock, IDs: &sim.IDs{},
		Log: slog.New(slog.DiscardHandler), Name: "c"})
	ended := make(chan error)
	go func() { ended <- c.Run(ctx) }()
	time.Sleep(5 * time.Second)

	// The process was paused. The store first delivers the end of the lease.
	clock.ahead.Store(int64(20 * time.Second))
	if _, err := registry.Commit(ctx, pando.Txn{Delete: []pando.Key{h1.Key()}}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(pando.HostLease / 2)
	if at := home(); at != "h1" {
		t.Errorf("half a lease after the pause the service is on %s", at)
	}
	want := pando.HostName("h2")
	if back {
		want = "h1"
		put(h1)
	}
	time.Sleep(pando.HostLease)
	if at := home(); at != want {
		t.Errorf("one lease and a half after the pause the service is on %s, want %s", at, want)
	}
	if _, err := registry.Commit(ctx, pando.Txn{Delete: []pando.Key{h1.Key()}}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	if at := home(); at != "h2" {
		t.Errorf("without a pause a host that is away keeps the service: it is on %s", at)
	}
	cancel()
	<-ended
	time.Sleep(20 * time.Second) // the simulated leases end after their holders
}
