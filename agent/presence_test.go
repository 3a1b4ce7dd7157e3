package agent

import (
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"pando.run/pando"
)

// verdicts is a prober. A test sets its verdicts.
type verdicts struct {
	mu      sync.Mutex
	watched []pando.HostName
	dead    []pando.HostName
	cut     []pando.HostName
	changed chan struct{}
}

func newVerdicts() *verdicts { return &verdicts{changed: make(chan struct{})} }

func (v *verdicts) Watch(hosts []pando.Host) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.watched = nil
	for _, h := range hosts {
		v.watched = append(v.watched, h.Name)
	}
	slices.Sort(v.watched)
}

func (v *verdicts) Dead() []pando.HostName {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.dead)
}

func (v *verdicts) Cut() []pando.HostName {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.cut)
}

func (v *verdicts) Changed() <-chan struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.changed
}

func (v *verdicts) Forged() uint64 { return 3 }

func (v *verdicts) set(dead ...pando.HostName) {
	v.mu.Lock()
	v.dead = dead
	close(v.changed)
	v.changed = make(chan struct{})
	v.mu.Unlock()
	synctest.Wait()
}

// others gives the bench two more hosts, each with an instance of the service.
func (b *bench) others() {
	e := pando.Endpoints{
		Service: pando.Service{ServiceKey: web, VIP4: pando.VIPs4.Addr().Next().Next(), Current: 1,
			Target: 1, Latest: 1},
		Hosts: []pando.HostName{"h2", "h3"},
	}
	for n, name := range e.Hosts {
		v4, v6 := pando.InstanceRange(n + 1)
		h := pando.Host{
			Name: name, Slot: n + 1, Address: v4.Addr(), Instances4: v4, Instances6: v6, Tunnel: true,
		}
		b.put(h)
		e.Seats = append(e.Seats, pando.Seat{
			Instance: pando.InstanceID("web-" + string(name)), Host: n, Phase: pando.PhaseInRotation,
			Revision: 1, Weight: 100,
		})
	}
	if _, err := b.registry.Commit(b.ctx, pando.Txn{Put: []pando.Stored{e}}); err != nil {
		b.Fatal(err)
	}
	synctest.Wait()
}

// weights returns the shares of new flows by instance.
func (b *bench) weights() map[string]int {
	out := map[string]int{}
	for _, e := range b.steering.Endpoints(web) {
		out[string(e.Instance)] = e.Weight
	}
	return out
}

func TestADeadHostGetsNoNewFlows(t *testing.T) {
	onBench(t, func(b *bench) {
		v := newVerdicts() // its channels belong to the bubble
		b.stop()
		b.liveness = v
		b.start()
		b.others()
		want := func(what string, h2, h3 int) {
			t.Helper()
			got := b.weights()
			if !maps.Equal(got, map[string]int{"web-h2": h2, "web-h3": h3}) {
				t.Errorf("%s: the weights are %v, want %d and %d", what, got, h2, h3)
			}
		}
		if !slices.Equal(v.watched, []pando.HostName{"h2", "h3"}) {
			t.Errorf("%v are probed", v.watched)
		}
		want("at first", 100, 100)
		v.set("h3")
		want("h3 dead", 100, 0) // its flows stay
		l, err := b.agent.Losses(b.ctx)
		if err != nil || l.Dead != "h3" || l.Forged != 3 {
			t.Errorf("the losses are %+v (%v)", l, err)
		}
		v.set("h2", "h3")
		want("both dead, the last instances", 100, 100)
		v.set("h2")
		want("h3 is back", 0, 100)
		v.set()
		want("both back", 100, 100)
		v.cut = []pando.HostName{"h3"}
		v.set()
		want("h3 lives, and is cut off from here", 100, 0)
		if l, err = b.agent.Losses(b.ctx); err != nil || l.Dead != "" || l.Cut != "h3" {
			t.Errorf("the losses are %+v (%v)", l, err)
		}
		v.set("h3")
		if l, err = b.agent.Losses(b.ctx); err != nil || l.Dead != "h3" || l.Cut != "" {
			t.Errorf("once it is dead, the losses are %+v (%v)", l, err)
		}
		v.cut = nil
		v.set()
		want("the link is back", 100, 100)
	})
}
