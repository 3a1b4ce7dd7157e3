package control

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/sim"
)

// meter is a host that is asked for its counters.
type meter struct {
	sim.Agent
	asked atomic.Int32
}

func (c *meter) Counters(context.Context) ([]pando.EndpointCounters, error) {
	c.asked.Add(1)
	return nil, nil
}

func TestNewsWithoutEndDoNotKeepTheScalerFromLooking(t *testing.T) {
	lead(t, 0, func(t *testing.T, l leadership) {
		host := &meter{}
		l.Peers.(*sim.Peers).Set("h1", host)
		spec := pando.Spec{Name: "web", Command: []string{"web"}, Scale: pando.Scale{Max: 3, By: pando.ByConnections}}.WithDefaults()
		revision := pando.Revision{Service: web, Number: 1, Spec: spec, State: pando.RevisionCurrent}
		const looks = 10
		for end := time.Now().Add(looks * scaleInterval); time.Now().Before(end); time.Sleep(scaleInterval / 4) {
			if _, err := l.registry.Commit(t.Context(), pando.Txn{Put: []pando.Stored{revision}}); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if n := host.asked.Load(); n < looks/2 {
			t.Errorf("the counters were read %d times in %d intervals", n, looks)
		}
	})
}
