package sim

import (
	"context"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/access"
)

// books keeps the book of a host beside its agent.
type books struct {
	mu   sync.Mutex
	text []byte
}

func (b *books) Load() ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text, nil
}

func (b *books) Save(text []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text = text
	return nil
}

type mortalBooks struct {
	pando.Books
	*mortal
}

func (b mortalBooks) Save(text []byte) error {
	return b.call(func() error { return b.Books.Save(text) })
}

// TestBillsCountOnce kills agents and leaders at any step for 20 minutes, while six instances run.
// The bill then has the time of these instances, less at most an interval, and each decision once.
func TestBillsCountOnce(t *testing.T) {
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
		o.spec.Environment = map[string]string{envNoState: "yes"}
		if !o.until("three hosts are here", settleTime, o.three) ||
			!o.until("the service is deployed", settleTime, o.deploy) ||
			!o.until("it serves", settleTime, o.settled) {
			return
		}
		dice := c.dice("bills", 0)
		for range 120 {
			var p *process
			if n := dice.IntN(5); n < 3 {
				p = &c.hosts[n].process
			} else {
				p = c.controls[n-3]
			}
			p.killSoon(1+dice.IntN(8), dice.IntN(2) == 0)
			p.start()
			nap(time.Duration(dice.IntN(20)) * time.Second)
		}
		nap(2 * time.Minute) // until the last work has a bill
		truth, decisions := 0.0, uint64(len(o.world().Decisions))
		for _, i := range o.world().Of(o.key) {
			truth += time.Since(i.Born).Seconds()
		}
		lines, err := c.front.Bills(ctx, access.BillQuery{Since: time.Unix(0, 0)})
		if err != nil || len(lines) != 1 {
			t.Fatalf("the bill is %+v, %v; want one line", lines, err)
		}
		// Work of up to 30 s and 10 s has no bill yet, of six instances.
		got := lines[0]
		t.Logf("%.0f of %.0f s, %d of %d decisions", got.InstanceSeconds, truth,
			got.Decisions, decisions)
		if short := truth - got.InstanceSeconds; short < -0.001 || short > 6*45 ||
			math.IsNaN(short) || truth < 6*600 {
			t.Errorf("%g seconds are billed of %g", got.InstanceSeconds, truth)
		}
		if got.Decisions != decisions || decisions == 0 {
			t.Errorf("%d decisions are billed of %d", got.Decisions, decisions)
		}
	})
}
