package agent

import (
	"encoding/json"
	"fmt"
	"math"
	"runtime"
	"testing"
	"time"

	"pando.run/pando"
)

// viewOf returns the view of the oldest of n instances, and the bytes that a look at it allocates.
func viewOf(t *testing.T, n int) (v pando.SelfView, bytes uint64) {
	onBench(t, func(b *bench) {
		var all []pando.Stored
		for k := range n {
			all = append(all, pando.Instance{
				ID: pando.InstanceID(fmt.Sprintf("web-%03d", k)), Service: web, Host: "h1", Revision: 1,
				Weight: 100, Phase: pando.PhasePlaced, Reason: "test", Since: time.Now(),
				Born: time.Now().Add(time.Duration(k) * time.Millisecond),
			})
		}
		b.put(all...)
		for _, i := range all {
			b.ok(b.agent.self.Ready(b.ctx, i.(pando.Instance).ID))
		}
		b.pass(time.Second)
		b.put(pando.Host{Name: "h1"}) // and the endpoints with all of them in rotation
		bytes = math.MaxUint64
		for range 10 { // the least: other goroutines allocate as well
			const looks = 10
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for range looks {
				var err error
				v, err = b.agent.self.Describe(b.ctx, "web-000")
				b.ok(err)
				_, err = json.Marshal(v)
				b.ok(err)
			}
			runtime.ReadMemStats(&after)
			bytes = min(bytes, (after.TotalAlloc-before.TotalAlloc)/looks)
		}
	})
	return v, bytes
}

// A view has the youngest fellows and the number of all. It costs the same in a service of any
// size.
func TestAViewCostsTheSameInALargeService(t *testing.T) {
	v, few := viewOf(t, pando.PeersMax+1)
	if len(v.Peers) != pando.PeersMax+1 || v.InRotation != pando.PeersMax+1 {
		t.Errorf("a view of %d has %d peers of %d", pando.PeersMax+1, len(v.Peers), v.InRotation)
	}
	v, all := viewOf(t, manyInstances)
	if v.InRotation != manyInstances || len(v.Peers) != pando.PeersMax+1 {
		t.Fatalf("a view of %d has %d peers of %d", manyInstances, len(v.Peers), v.InRotation)
	}
	if self, last := v.Peers[0].ID, v.Peers[pando.PeersMax].ID; self != "web-000" ||
		last != pando.InstanceID(fmt.Sprintf("web-%03d", manyInstances-1)) {
		t.Errorf("the view of web-000 begins with %s and ends with %s", self, last)
	}
	if all > few+few/4 {
		t.Errorf("a view takes %d bytes beside %d fellows, %d beside %d", all, manyInstances, few,
			pando.PeersMax)
	}
	if v, _ := viewOf(t, 3); len(v.Peers) != 3 || v.InRotation != 3 {
		t.Errorf("a view of 3 has %d peers of %d", len(v.Peers), v.InRotation)
	}
}
