package control

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/sim"
	"pando.run/pando/world"
)

// A service that is deployed again after a restore waits for its instance that runs without a record.
// Its host sees the service at once, and no other instance starts beside it. One that does not come back
// is replaced.
func TestAServiceWaitsForItsInstanceThatRunsAdrift(t *testing.T) {
	for name, back := range map[string]bool{"it comes back": true, "it does not": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { deployAdrift(t, " default/web/web-old", back) })
		})
	}
}

// A service waits for no instance of another one: not of the same name in another tenant, and not of
// one whose name begins alike.
func TestAServiceWaitsForNoInstanceOfAnotherOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { deployAdrift(t, "", false) })
}

// deployAdrift deploys the service web after a restore. own is the word of its instance adrift, or "".
func deployAdrift(t *testing.T, own string, back bool) {
	ctx, cancel := context.WithCancel(context.Background())
	registry := sim.NewRegistry(1, 0)
	put := func(v ...pando.Stored) {
		t.Helper()
		if _, err := registry.Commit(ctx, pando.Txn{Put: v}); err != nil {
			t.Fatal(err)
		}
	}
	stored := func() *world.World {
		now, err := registry.Snapshot(ctx, pando.Root)
		w := world.New()
		if err != nil || w.Apply(now.Records, now.Revision) != nil {
			t.Fatal(err)
		}
		return w
	}
	put(pando.Cluster{ID: "ours", Generation: 2, Restored: time.Now()},
		pando.Host{Name: "h1", Adopted: 2, Adrift: "shop/web/web-shop-1 default/web-shop/web-shop-1" + own})
	c := New(Config{Registry: registry, Peers: sim.NewPeers(), Clock: sim.Clock{}, IDs: &sim.IDs{},
		Log: slog.New(slog.DiscardHandler), Name: "c"})
	ended := make(chan error)
	go func() { ended <- c.Run(ctx) }()
	time.Sleep(time.Second)
	put(pando.Service{ServiceKey: web, Current: 1, Target: 1, Latest: 1, Phase: pando.ServiceServing},
		pando.Revision{Service: web, Number: 1, State: pando.RevisionCurrent,
			Spec: pando.Spec{Name: "web", Command: []string{"web"}}.WithDefaults()})
	time.Sleep(2 * time.Second)
	if all := stored().Of(web); len(all) > 0 != (own == "") {
		t.Fatalf("with %q adrift there are %v", own, all)
	}
	if e, ok := stored().Endpoints[web]; !ok || !e.V.Service.VIP4.IsValid() {
		t.Errorf("the host of the instance sees the service as %v", e.V)
	}
	if back {
		put(pando.Instance{ID: "web-old", Service: web, Host: "h1", Revision: 1, Weight: 100,
			Phase: pando.PhaseInRotation, Reason: "test", Born: time.Now(), Since: time.Now()})
	}
	time.Sleep(2 * adriftWait)
	all := stored().Of(web)
	if len(all) != 1 || (all[0].ID == "web-old") != back {
		t.Errorf("it has %v", all)
	}
	cancel()
	<-ended
	time.Sleep(20 * time.Second)
}
