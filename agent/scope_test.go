package agent

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/world"
)

// countedStore counts the records that an agent receives from the store.
type countedStore struct {
	pando.Registry
	mu      sync.Mutex
	records map[pando.Kind]int
}

func (m *countedStore) note(all []pando.Record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range all {
		m.records[r.Key.Kind()]++
	}
}

func (m *countedStore) count() map[pando.Kind]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.records)
}

func (m *countedStore) Snapshot(ctx context.Context, p pando.Key) (pando.Snapshot, error) {
	s, err := m.Registry.Snapshot(ctx, p)
	m.note(s.Records)
	return s, err
}

func (m *countedStore) Watch(
	ctx context.Context, p pando.Key, after pando.StoreRevision,
) <-chan pando.Batch {
	out := make(chan pando.Batch)
	go func() {
		defer close(out)
		for b := range m.Registry.Watch(ctx, p, after) {
			m.note(b.Changes)
			select {
			case out <- b:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// elsewhere places an instance of another service on another host, with all the records that
// control writes about it.
func (b *bench) elsewhere(n, service int) {
	b.Helper()
	s := pando.DefaultService(pando.ServiceName(fmt.Sprintf("s%d", service)))
	id := pando.InstanceID(fmt.Sprintf("%s-%d", s.Name, n))
	ask := pando.Intent{ID: pando.IntentID(fmt.Sprintf("ask-%s", id)), Service: s,
		Verb: pando.VerbReplicate, By: pando.Asker{Kind: pando.AskerControl}}
	b.put(pando.Service{ServiceKey: s, VIP4: pando.VIPs4.Addr().Next(), Target: 1, Home: "h2"},
		pando.Revision{Service: s, Number: 1, Spec: pando.Spec{Name: s.Name}.WithDefaults()},
		ask.Become(pando.IntentAsked, time.Now(), "load"),
		pando.Decision{ID: "d" + string(id), Service: s, Kind: pando.DecidedDeploy},
		pando.Instance{ID: id, Service: s, Host: "h2", Revision: 1, Phase: pando.PhaseInRotation})
}

// A commit of a service of other hosts costs an agent one record, and wakes no runner.
func TestAnAgentFollowsNothingOfOtherHosts(t *testing.T) {
	onBench(t, func(b *bench) {
		b.stop()
		m := &countedStore{Registry: b.registry, records: map[pando.Kind]int{}}
		b.through = m
		b.start()
		b.serving("web-1", 1)
		b.put(pando.Host{Name: "h2"}) // and the endpoints with web-1 in rotation
		steps, before := b.agent.host.Tally.Steps.Load(), m.count()
		for n := range 50 {
			b.elsewhere(n, n%5)
		}
		for kind, n := range m.count() {
			most := before[kind]
			if kind == pando.KindEndpoints {
				most += 50
			}
			if n > most {
				t.Errorf("the agent received %d records of kind %s, want at most %d", n, kind, most)
			}
		}
		if now := b.agent.host.Tally.Steps.Load(); now != steps {
			t.Errorf("50 commits about other hosts made the runners take %d steps", now-steps)
		}
		b.agent.records.Read(func(w *world.World) {
			if len(w.Intents)+len(w.Decisions) > 0 || len(w.Revisions) > 1 || len(w.Instances) > 1 {
				t.Errorf("the agent remembers %d intents, %d decisions, specs of %d services, %d instances",
					len(w.Intents), len(w.Decisions), len(w.Revisions), len(w.Instances))
			}
			if len(w.Endpoints) != 6 {
				t.Errorf("the agent has the endpoints of %d services, want 6", len(w.Endpoints))
			}
		})
		if n := len(b.agent.records.Intents); n > 2 {
			t.Errorf("the agent remembers %d asks of one instance", n)
		}
	})
}

// A service concerns a host from its first instance there until its last one is gone. Then the host
// forgets its spec and its asks.
func TestAHostForgetsAServiceThatLeft(t *testing.T) {
	onBench(t, func(b *bench) {
		s := pando.DefaultService("guest")
		b.put(pando.Service{ServiceKey: s, VIP4: pando.VIPs4.Addr().Next(), Target: 1, Current: 1},
			pando.Revision{Service: s, Number: 1, Spec: pando.Spec{Name: "guest"}.WithDefaults()})
		known := func(want bool) {
			t.Helper()
			synctest.Wait()
			b.agent.records.Read(func(w *world.World) {
				if _, got := w.SpecOf(s, 1); got != want || b.agent.scope.mine[s] != want {
					t.Errorf("the host follows guest: %v (spec %v), want %v", b.agent.scope.mine[s], got, want)
				}
			})
		}
		known(false)
		b.put(pando.Instance{ID: "guest-1", Service: s, Host: "h1", Revision: 1, Weight: 100,
			Phase: pando.PhasePlaced, Born: time.Now(), Since: time.Now()})
		known(true)
		b.ok(b.agent.self.Ready(b.ctx, "guest-1"))
		b.phase("guest-1", pando.PhaseInRotation)
		b.drain("guest-1", true)
		b.pass(time.Minute)
		if _, there := b.world().Instances["guest-1"]; there {
			t.Fatal("guest-1 is still there")
		}
		b.put(pando.Service{ServiceKey: s, VIP4: pando.VIPs4.Addr().Next(), Target: 1, Current: 1})
		b.put(pando.Host{Name: "h9"}) // any news
		known(false)
		if n := len(b.agent.records.Intents); n > 0 {
			t.Errorf("the agent remembers %d asks without an instance", n)
		}
	})
}

// The record of an instance, its spec and the endpoints of its service come in any order.
func TestARunnerWaitsForTheSpecOfItsInstance(t *testing.T) {
	onBench(t, func(b *bench) {
		s := pando.DefaultService("late")
		i := pando.Instance{ID: "late-1", Service: s, Host: "h1", Revision: 1, Weight: 100,
			Phase: pando.PhasePlaced, Born: time.Now(), Since: time.Now()}
		svc := pando.Service{ServiceKey: s, VIP4: pando.VIPs4.Addr().Next(), Target: 1}
		b.put(svc, i)
		if n := len(b.sandboxes.All()); n > 0 {
			t.Fatalf("%d sandboxes run without a spec", n)
		}
		b.restart() // the next agent waits as well
		b.put(pando.Revision{Service: s, Number: 1, Spec: pando.Spec{Name: "late"}.WithDefaults()})
		b.ok(b.agent.self.Ready(b.ctx, "late-1"))
		b.phase("late-1", pando.PhaseInRotation)
	})
}

// A control of an older version writes no endpoints. The tables of a former agent stay in force.
// The sandboxes run on.
func TestAStoreWithoutEndpointsChangesNothing(t *testing.T) {
	onBench(t, func(b *bench) {
		b.serving("web-1", 1)
		before, ok := b.steering.Open(web)
		if !ok || len(b.sandboxes.All()) != 1 {
			t.Fatalf("web-1 is not steered to: %v", before)
		}
		b.stop()
		old := pando.Txn{Delete: []pando.Key{pando.EndpointsKey(web)}}
		if _, err := b.registry.Commit(b.ctx, old); err != nil {
			t.Fatal(err)
		}
		b.start()
		b.pass(time.Second)
		if _, ok := b.steering.Open(web); !ok || len(b.sandboxes.All()) != 1 {
			t.Errorf("%d sandboxes run, and web is steered: %v", len(b.sandboxes.All()), ok)
		}
		b.put(pando.Host{Name: "h1"}) // the next control writes them
		b.serving("web-2", 1)
		if n := len(b.sandboxes.All()); n != 2 {
			t.Errorf("%d sandboxes run, want 2", n)
		}
	})
}
