package sim

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
)

// TestASpreadServiceLosesAHost kills one of three hosts until its lease ends. Its instances are
// replaced on the others, once. Those that come back leave, and the other instances never notice.
func TestASpreadServiceLosesAHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		defer time.Sleep(pando.HostLease + time.Second) // until the last lease has ended
		c := newCluster(ctx, t, spreadSeed, 3, delayLeast, nothingMore)
		defer c.endAll(cancel)
		c.startAll()
		c.mu.Lock()
		c.quiet = true // no asks: the numbers are the spec's
		c.mu.Unlock()
		o := newOperator(c, service)
		o.spec.Scale = pando.Scale{Min: 6, Max: 6}
		o.spec.Rollout.Order = pando.StartFirst
		o.spec.Environment = map[string]string{envNoState: "yes"}
		if !o.until("three hosts are here", settleTime, o.three) ||
			!o.until("the service is deployed", settleTime, o.deploy) ||
			!o.until("it serves", settleTime, o.settled) {
			return
		}
		before := o.world().Of(o.key)
		if got := o.on(); got != "h1: 2, h2: 2, h3: 2" {
			t.Errorf("it runs on %s", got)
		}
		lost := c.hosts[1]
		lost.killSoon(1, true)
		nap(2 * pando.HostLease)
		if got := o.on(); got != "h1: 3, h2: 0, h3: 3" {
			t.Errorf("after the loss of h2 it runs on %s", got)
		}
		lost.start()
		if !o.until("it serves again", settleTime, o.settled) {
			return
		}
		if got := o.on(); got != "h1: 3, h2: 0, h3: 3" {
			t.Errorf("after the return of h2 it runs on %s", got)
		}
		for _, i := range before {
			now, there := o.known.Instances[i.ID]
			if i.Host != "h2" && (!there || now.V.Phase != pando.PhaseInRotation) {
				t.Errorf("%s on %s was disturbed: %+v", i.ID, i.Host, now.V)
			}
		}
		if !o.until("the service is removed", settleTime, o.remove) ||
			!o.until("nothing is left", settleTime, o.nothingLeft) {
			return
		}
		c.verify(o.main)
	})
}

// spreadSeed is the seed of a run with services that spread.
const spreadSeed = 5

func (o *operator) three() error {
	if n := len(o.world().Hosts); n != 3 {
		return fmt.Errorf("%d hosts have joined", n)
	}
	return nil
}

// on lists the instances in rotation of each host.
func (o *operator) on() string {
	n := map[pando.HostName]int{}
	for _, i := range o.world().Of(o.key) {
		if i.Phase == pando.PhaseInRotation {
			n[i.Host]++
		}
	}
	return fmt.Sprintf("h1: %d, h2: %d, h3: %d", n["h1"], n["h2"], n["h3"])
}
