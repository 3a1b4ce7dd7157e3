package control

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/sim"
	"pando.run/pando/world"
)

// scales is a registry that counts the commits that are written at the same time.
type scales struct {
	*sim.Registry
	mu      sync.Mutex
	writing map[pando.ServiceKey]int
	most    int  // commits at the same time
	twice   bool // two decisions about one service were written at the same time
}

func (s *scales) Commit(ctx context.Context, t pando.Txn) (pando.StoreRevision, error) {
	var of pando.ServiceKey
	for _, v := range t.Put {
		if k, ok := v.Key().Service(); ok {
			of = k
		}
	}
	s.note(of, +1)
	defer s.note(of, -1)
	return s.Registry.Commit(ctx, t)
}

func (s *scales) note(of pando.ServiceKey, by int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writing[of] += by
	s.twice = s.twice || s.writing[of] > 1 && of.Name != ""
	sum := 0
	for _, n := range s.writing {
		sum += n
	}
	s.most = max(s.most, sum)
}

// deployMany deploys services at once to a cluster with a slow store. It returns the contents of
// the store at rest.
func deployMany(t *testing.T, services int, spec pando.Spec, hosts ...pando.Host) (
	w *world.World, s *scales,
) {
	ctx, cancel := context.WithCancel(context.Background())
	s = &scales{
		Registry: sim.NewRegistry(7, 20*time.Millisecond), writing: map[pando.ServiceKey]int{},
	}
	for _, h := range hosts {
		if _, _, err := s.Join(ctx, h, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	c := New(Config{Registry: s, Peers: sim.NewPeers(), Clock: sim.Clock{}, IDs: &sim.IDs{},
		Log: slog.New(slog.DiscardHandler), Name: "c"})
	run, stop := context.WithCancel(ctx)
	ended := make(chan error)
	go func() { ended <- c.Run(run) }()
	time.Sleep(time.Second)
	txn := pando.Txn{}
	for n := range services {
		key := pando.DefaultService(pando.ServiceName(fmt.Sprintf("s%02d", n)))
		spec.Name = key.Name
		txn.Put = append(txn.Put, pando.Service{ServiceKey: key, Target: 1, Latest: 1},
			pando.Revision{Service: key, Number: 1, Spec: spec.WithDefaults()})
	}
	if _, err := s.Registry.Commit(ctx, txn); err != nil {
		t.Fatal(err)
	}
	time.Sleep(10 * time.Second)
	now, err := s.Snapshot(ctx, pando.Root)
	w = world.New()
	if err == nil {
		err = w.Apply(now.Records, now.Revision)
	}
	if err != nil {
		t.Error(err)
	}
	stop()
	<-ended
	cancel()
	time.Sleep(2 * time.Minute) // the leases of the hosts end after them
	return w, s
}

// Decisions about different services are written beside each other. Those about one service are
// not.
func TestAServiceHasATurnOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := deployMany(t, 20, pando.Spec{Command: []string{"run"}, Scale: pando.Scale{Min: 3}},
			pando.Host{Name: "h1"})
		if s.most < 5 || s.twice {
			t.Errorf("at most %d decisions were written at the same time (two about one service: %v)",
				s.most, s.twice)
		}
		if n := len(w.Instances); n != 60 {
			t.Errorf("%d instances are placed, want 60", n)
		}
	})
}

// Services that are decided beside each other never fill the same room of a host, and never get the
// same address.
func TestServicesThatArePlacedAtOnceShareTheRoomOfAHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spec := pando.Spec{Command: []string{"run"}, Scale: pando.Scale{Min: 2}}
		spec.Resources = pando.Resources{MemoryBytes: 300 << 20, PIDs: 10}
		hosts := []pando.Host{
			{Name: "h1", Slot: 1, Memory: 2 << 30, PIDs: 10_000},
			{Name: "h2", Slot: 2, Memory: 1 << 30, PIDs: 10_000},
		}
		w, _ := deployMany(t, 20, spec, hosts...)
		for _, h := range hosts {
			if l := w.LoadOn(h.Name); l.MemoryBytes > h.Memory || l.MemoryBytes < h.Memory-300<<20 {
				t.Errorf("%s has %d MiB of memory and instances of %d MiB", h.Name, h.Memory>>20,
					l.MemoryBytes>>20)
			}
		}
		vips := map[netip.Addr]pando.ServiceKey{}
		for s, v := range w.Services {
			if other, taken := vips[v.V.VIP4]; taken || !v.V.VIP4.IsValid() {
				t.Errorf("%s has the address %s of %s", s, v.V.VIP4, other)
			}
			vips[v.V.VIP4] = s
		}
	})
}

// A reservation counts until its commit is applied, and leaves nothing behind.
func TestAReservationHoldsItsRoomOnce(t *testing.T) {
	w := world.New()
	spec := pando.Spec{Name: "web", Command: []string{"web"}}
	spec.Resources.MemoryBytes = 100
	vip := pando.VIPs4.Addr().Next()
	i := pando.Instance{ID: "web-1", Service: web, Host: "h1", Revision: 1}
	w.Committed(pando.Txn{Put: []pando.Stored{
		pando.Service{ServiceKey: web}, pando.Revision{Service: web, Number: 1, Spec: spec},
	}}, 1)
	txn := pando.Txn{Put: []pando.Stored{i, pando.Service{ServiceKey: web, VIP4: vip}}}
	holds := func(when string, memory int64, vips int) {
		t.Helper()
		_, taken := w.HasVIP(vip)
		if got := w.LoadOn("h1").MemoryBytes; got != memory || taken != (vips > 0) {
			t.Errorf("%s: h1 holds %d bytes (want %d), and the address is taken: %v", when, got, memory,
				taken)
		}
	}
	w.Reserve(txn)
	w.Reserve(txn)
	holds("reserved twice", 100, 1)
	w.Release(txn)
	w.Release(txn)
	holds("given back", 0, 0)
	w.Reserve(txn)
	w.Committed(txn, 2)
	holds("written", 100, 1)
	w.Release(txn)
	holds("written and given back", 100, 1)
	w.Committed(pando.Txn{Delete: []pando.Key{i.Key(), web.Key()}}, 3)
	holds("deleted", 0, 0)
}
