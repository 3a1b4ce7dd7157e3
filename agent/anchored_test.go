package agent

import (
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/sim"
)

// notes is a sighting that outlives the agent.
type notes struct{ pando.Sighting }

func (n *notes) Load(bool) (pando.Sighting, error) { return n.Sighting, nil }
func (n *notes) Save(s pando.Sighting) error       { n.Sighting = s; return nil }

// mend writes the instances and the store's record of itself as they were, later than before.
func (b *bench) mend(was pando.Snapshot) {
	for range 100 {
		for _, r := range was.Records {
			if r.Key.Kind() == pando.KindInstance || r.Key == pando.ClusterKey {
				b.registry.Overwrite(r.Key, r.Value)
			}
		}
	}
}

// A store that is empty, older, foreign or damaged ends no instance, breaks no flow and loses no
// state: with the agent that saw the right one, and with a new agent.
func TestAWrongStoreEndsNothing(t *testing.T) {
	for what, wrong := range map[string]func(b *bench, older sim.Image){
		"empty": func(b *bench, _ sim.Image) { b.registry.Replace(sim.Image{}) },
		"older": func(b *bench, older sim.Image) { b.registry.Replace(older) },
		"foreign": func(b *bench, _ sim.Image) {
			b.registry.Replace(sim.Image{})
			b.put(pando.Cluster{ID: "theirs", Generation: 1})
			for range 200 {
				b.put(pando.Service{ServiceKey: pando.DefaultService("theirs")})
			}
		},
		"damaged": func(b *bench, _ sim.Image) {
			for _, i := range b.world().Instances {
				b.registry.Overwrite(i.V.Key(), []byte("garbage"))
			}
			b.registry.Overwrite(pando.ClusterKey, []byte("garbage"))
		},
	} {
		t.Run(what, func(t *testing.T) {
			onBench(t, func(b *bench) {
				b.T = t
				b.sightings = &notes{}
				b.put(pando.Cluster{ID: "ours", Generation: 1})
				b.restart()
				older := b.registry.Copy()
				b.serving("web-1", 1)
				b.serving("web-2", 1)
				b.write("web-1", "kept", true)
				_, err := b.agent.self.StatePush(b.ctx, "web-1")
				b.ok(err)
				flow, _ := b.steering.Open(web)
				b.pass(time.Minute)
				right := b.registry.Copy()
				records, err := b.registry.Snapshot(b.ctx, pando.Root)
				b.ok(err)
				unharmed := func(when string) {
					t.Helper()
					b.pass(30 * time.Minute) // states are trimmed meanwhile
					if n := len(b.sandboxes.All()); n != 2 {
						t.Fatalf("%s: %d sandboxes are left", when, n)
					}
					if b.steering.FlowsOf(flow) != 1 || b.steering.Broken() != 0 {
						t.Errorf("%s: %d flows, %d broken", when, b.steering.FlowsOf(flow), b.steering.Broken())
					}
					if i, ok := b.steering.Open(web); !ok {
						t.Errorf("%s: nothing is steered", when)
					} else {
						b.steering.End(i)
					}
				}
				wrong(b, older)
				unharmed("the same agent")
				b.restart()
				unharmed("a new agent")
				if b.registry.Replace(right); what == "damaged" {
					b.mend(records)
				}
				unharmed("the right store is back")
				b.phase("web-1", pando.PhaseInRotation)
				if log := b.merged("log"); log != "kept\n" {
					t.Errorf("main has the log %q", log)
				}
				b.serving("web-3", 1) // it follows again
			})
		})
	}
}
