package agent

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/sim"
)

// A restored backup ends nothing: what runs comes back into the store, with its newest step and the
// newest state; what the backup has not got the service of runs on and is named.
func TestARestoredBackupAdoptsWhatRuns(t *testing.T) {
	onBench(t, func(b *bench) {
		b.sightings = &notes{}
		b.put(pando.Cluster{ID: "ours", Generation: 1})
		b.restart()
		b.serving("web-1", 1)
		b.place("web-2", 1)
		b.phase("web-2", pando.PhaseStarting)
		b.write("web-1", "before", true)
		_, err := b.agent.self.StatePush(b.ctx, "web-1")
		b.ok(err)
		backup := b.registry.Copy()
		b.ok(b.agent.self.Ready(b.ctx, "web-2"))
		b.phase("web-2", pando.PhaseInRotation)
		b.serving("web-3", 1)
		b.write("web-1", "after", true)
		_, err = b.agent.self.StatePush(b.ctx, "web-1")
		b.ok(err)
		b.deployNew("late")
		flows := map[pando.InstanceID]bool{}
		for range 12 {
			i, _ := b.steering.Open(web)
			flows[i] = true
		}
		late, _ := b.steering.Open(pando.DefaultService("late"))
		b.registry.Replace(sim.Image{}) // the disk is lost
		b.pass(time.Minute)
		now := time.Now()
		b.registry.Replace(backup.Restored(
			func(c pando.Cluster) []byte { return mustEncode(t, c) },
			pando.Cluster{ID: "ours", Generation: 2, Restored: now}))
		b.pass(30 * time.Second)
		for _, id := range []pando.InstanceID{"web-1", "web-2", "web-3"} {
			b.phase(id, pando.PhaseInRotation)
		}
		unharmed := func() {
			t.Helper()
			if n := len(b.sandboxes.All()); n != 4 || b.steering.Broken() != 0 || len(flows) != 3 {
				t.Fatalf("%d sandboxes, %d broken flows, %d instances had flows", n, b.steering.Broken(),
					len(flows))
			}
			for i := range flows {
				if b.steering.FlowsOf(i) == 0 {
					t.Errorf("%s has lost its flows", i)
				}
			}
			if b.steering.FlowsOf(late) != 1 {
				t.Error("the service that the backup lacks has lost its flow")
			}
		}
		unharmed()
		if log := b.merged("log"); log != "before\nafter\n" {
			t.Errorf("main has the log %q", log)
		}
		h := b.world().Hosts["h1"].V
		if h.Adopted != 2 || h.Adrift != "default/late/late-1" {
			t.Errorf("the host shows generation %d and adrift %q", h.Adopted, h.Adrift)
		}
		b.restart()
		b.pass(10 * time.Minute)
		unharmed()
		b.serving("web-4", 1) // and the cluster goes on
	})
}

// After a restore, a deploy can reuse the number of an older spec. An instance of the older spec
// runs on without a record. A record would make it an instance of the new spec.
func TestAnInstanceOfAnotherSpecWithTheSameNumberStaysAdrift(t *testing.T) {
	for _, hash := range []string{"", "of the record"} { // records of former builds have no hash
		onBench(t, func(b *bench) { staysAdrift(b, hash != "") })
	}
}

func staysAdrift(b *bench, hashed bool) {
	b.Helper()
	b.sightings = &notes{}
	b.put(pando.Cluster{ID: "ours", Generation: 1})
	b.restart()
	backup := b.registry.Copy()
	b.deployNew("late")
	if !hashed {
		i := b.world().Instances["late-1"].V
		i.SpecHash = ""
		b.put(i)
	}
	late := pando.DefaultService("late")
	service, spec := b.world().Services[late].V, b.world().Revisions[late][1].V
	b.registry.Replace(backup.Restored(
		func(c pando.Cluster) []byte { return mustEncode(b.T, c) },
		pando.Cluster{ID: "ours", Generation: 2, Restored: time.Now()}))
	b.pass(30 * time.Second)
	spec.Spec.Command = []string{"another"}
	b.put(spec) // before its service: the store of this bench compares no hashes
	b.put(service)
	b.pass(30 * time.Second)
	if i, there := b.world().Instances["late-1"]; there {
		b.Errorf("it is back as %+v", i.V)
	}
	if h := b.world().Hosts["h1"].V; h.Adrift != "default/late/late-1" || len(b.sandboxes.All()) != 1 {
		b.Errorf("%d sandboxes, adrift %q", len(b.sandboxes.All()), h.Adrift)
	}
}

// An instance of another spec than the one that came back runs on, and so does one of an agent that
// knows only its name. Each ends when its service is removed, by the same agent and by a new one.
func TestAnInstanceAdriftEndsWithItsService(t *testing.T) {
	for name, how := range map[string]struct{ fresh, unread bool }{
		"by the same agent": {}, "by a new agent": {fresh: true}, "while it reads no store": {unread: true},
	} {
		t.Run(name, func(t *testing.T) {
			onBench(t, func(b *bench) {
				staysAdrift(b, false)
				late := pando.DefaultService("late")
				if how.fresh {
					b.restart()
					b.pass(10 * time.Second)
					if len(b.sandboxes.All()) != 1 {
						t.Fatal("the next agent ended it")
					}
				}
				// Its spec stays longer: the store of this bench compares no hashes.
				_, err := b.registry.Commit(b.ctx, pando.Txn{Delete: []pando.Key{
					pando.Service{ServiceKey: late}.Key(), pando.EndpointsKey(late)}})
				b.ok(err)
				if how.unread {
					b.registry.Fail(pando.ErrCompacted)
					b.pass(time.Second)
					b.registry.Fail(nil)
				}
				b.pass(30 * time.Second)
				if h := b.world().Hosts["h1"].V; h.Adrift != "" || len(b.sandboxes.All()) != 0 {
					t.Errorf("%d sandboxes, adrift %q", len(b.sandboxes.All()), h.Adrift)
				}
				b.restart()
				b.pass(10 * time.Second)
				if h := b.world().Hosts["h1"].V; h.Adrift != "" {
					t.Errorf("the next agent shows adrift %q", h.Adrift)
				}
			})
		})
	}
}

// An instance that began after the restore ends with its record, also while its service changes beside
// one that runs adrift.
func TestAnInstanceAfterTheRestoreIsNeverAdrift(t *testing.T) {
	onBench(t, func(b *bench) {
		staysAdrift(b, true)
		late := pando.DefaultService("late")
		i := pando.Instance{ID: "late-2", Service: late, Host: "h1", Revision: 1, Weight: 100, SpecHash: "x",
			Phase: pando.PhasePlaced, Born: time.Now(), Since: time.Now()}
		b.put(i)
		b.ok(b.agent.self.Ready(b.ctx, i.ID))
		b.phase(i.ID, pando.PhaseInRotation)
		b.steering.Fail("Remove", 5) // so that its end takes a while
		svc := b.world().Services[late].V
		svc.Latest++
		_, err := b.commit(b.ctx, pando.Txn{Delete: []pando.Key{i.Key()}, Put: []pando.Stored{svc}})
		b.ok(err)
		b.pass(30 * time.Second)
		if h := b.world().Hosts["h1"].V; h.Adrift != "default/late/late-1" || len(b.sandboxes.All()) != 1 {
			t.Errorf("%d sandboxes, adrift %q", len(b.sandboxes.All()), h.Adrift)
		}
	})
}

// deployNew deploys a second service with one instance in rotation.
func (b *bench) deployNew(name pando.ServiceName) {
	b.Helper()
	s := pando.DefaultService(name)
	spec := pando.Spec{Name: name, Command: []string{"x"}, Scale: pando.Scale{Min: 1, Max: 1}}
	vip := pando.VIPs4.Addr().Next().Next().Next()
	b.put(pando.Service{ServiceKey: s, VIP4: vip, Current: 1, Target: 1, Latest: 1},
		pando.Revision{Service: s, Number: 1, Spec: spec.WithDefaults()})
	id := pando.InstanceID(name + "-1")
	b.put(pando.Instance{ID: id, Service: s, Host: "h1", Revision: 1, Weight: 100,
		SpecHash: spec.WithDefaults().Hash(), Phase: pando.PhasePlaced, Born: time.Now(), Since: time.Now()})
	b.ok(b.agent.self.Ready(b.ctx, id))
	synctest.Wait()
	b.phase(id, pando.PhaseInRotation)
}

// slowHost is a registry that writes the records of hosts slowly.
type slowHost struct{ pando.Registry }

func (s slowHost) Commit(ctx context.Context, t pando.Txn) (pando.StoreRevision, error) {
	if len(t.Put) == 1 && t.Put[0].Key().Kind() == pando.KindHost {
		time.Sleep(time.Second)
	}
	return s.Registry.Commit(ctx, t)
}

// The endpoints and the spec of a service that comes back arrive one after the other. Its instance
// is adopted, also by a new agent, and also while this host writes.
func TestAServiceThatComesBackInTwoStepsIsAdopted(t *testing.T) {
	for name, fresh := range map[string]bool{"by the same agent": false, "by a new agent": true} {
		t.Run(name, func(t *testing.T) {
			onBench(t, func(b *bench) {
				b.sightings = &notes{}
				b.put(pando.Cluster{ID: "ours", Generation: 1})
				b.through = slowHost{b.registry}
				b.restart()
				backup := b.registry.Copy()
				late := pando.DefaultService("late")
				b.deployNew(late.Name)
				w := b.world()
				service, spec := w.Services[late].V, w.Revisions[late][1].V
				b.registry.Replace(backup.Restored(
					func(c pando.Cluster) []byte { return mustEncode(t, c) },
					pando.Cluster{ID: "ours", Generation: 2, Restored: time.Now()}))
				b.pass(30 * time.Second)
				if fresh {
					b.restart()
					b.pass(10 * time.Second)
				}
				b.put(service)
				b.pass(500 * time.Millisecond)
				b.put(spec)
				b.pass(30 * time.Second)
				b.phase("late-1", pando.PhaseInRotation)
				if h := b.world().Hosts["h1"].V; h.Adrift != "" || len(b.sandboxes.All()) != 1 {
					t.Errorf("%d sandboxes, adrift %q", len(b.sandboxes.All()), h.Adrift)
				}
			})
		})
	}
}
