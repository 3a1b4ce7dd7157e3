// Package billing collects the work of all hosts and adds it to the bills of tenants. It follows the
// mirror for the decisions, which are billed too.
package billing

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/mirror"
)

// Bounds of the collection of work.
const (
	billInterval = 30 * time.Second       // between two rounds, at least
	billPerHost  = 300 * time.Millisecond // the interval grows with the hosts: 5 minutes at 1,000
	billWaitMax  = 2 * time.Second        // for the answer of a host
	billAskers   = 16                     // hosts that are asked at once
	billBatches  = 100                    // of one host in one round
)

// Biller collects the work of all hosts and adds it to the bills of tenants.
type Biller struct {
	mirror *mirror.Mirror
	peers  pando.Peers
	// silent returns why a host is not asked now, or nil.
	silent   func(pando.HostName) error
	unbilled unbilled
}

// NewBills returns the bills of a cluster. They follow the mirror from now on.
func NewBills(
	m *mirror.Mirror, p pando.Peers, silent func(pando.HostName) error,
) *Biller {
	b := &Biller{mirror: m, peers: p, silent: silent}
	m.Listeners = append(m.Listeners, b.unbilled.take)
	return b
}

// Collect adds work to the bills until ctx ends. The fence keeps a former leader from adding any.
func (c *Biller) Collect(ctx context.Context, fence pando.Fence) {
	for ctx.Err() == nil {
		if err := c.round(ctx, fence); err != nil && ctx.Err() == nil {
			c.mirror.Log.Warn("work waits for its bill: it is collected again", "error", err)
		}
		wait := max(billInterval, time.Duration(len(c.mirror.Hosts()))*billPerHost)
		_ = pando.Sleep(ctx, c.mirror.Clock, wait)
	}
}

// round collects from each host, then bills decisions, then removes old records.
func (c *Biller) round(ctx context.Context, fence pando.Fence) error {
	hosts := c.mirror.Hosts()
	for n := 0; n < billBatches && len(hosts) > 0; n++ {
		all := c.ask(ctx, hosts)
		if err := c.bill(ctx, fence, all); err != nil {
			return err
		}
		more := map[pando.HostName]bool{}
		for _, d := range all {
			more[d.mark.Host] = d.More
		}
		hosts = slices.DeleteFunc(hosts, func(h pando.Host) bool { return !more[h.Name] })
	}
	for n := 0; n < billBatches; n++ {
		c.mirror.Mu.RLock()
		decided := c.unbilled.delivery(c.mirror.Clock.Now())
		c.mirror.Mu.RUnlock()
		if decided == nil {
			break
		}
		if err := c.bill(ctx, fence, decided); err != nil {
			return err
		}
		c.mirror.Mu.Lock()
		c.unbilled.settle(c.mirror.World)
		c.mirror.Mu.Unlock()
	}
	c.mirror.Mu.RLock()
	gone := oldBills(c.mirror.World, c.mirror.Clock.Now())
	c.mirror.Mu.RUnlock()
	if len(gone) == 0 {
		return nil
	}
	return c.mirror.Commit(ctx, fence, pando.Txn{Delete: gone})
}

// bill adds deliveries to the bills, in as many commits as they need.
func (c *Biller) bill(ctx context.Context, fence pando.Fence, all []delivery) error {
	for len(all) > 0 {
		c.mirror.Mu.RLock()
		t, rest, odd := bookAll(c.mirror.World, all, c.mirror.Clock.Now())
		c.mirror.Mu.RUnlock()
		if odd != nil {
			c.mirror.Log.Warn("a host reports work that cannot be billed", "error", odd)
		}
		if err := c.mirror.Commit(ctx, fence, t); err != nil {
			return fmt.Errorf("write bills: %w", err)
		}
		all = rest
	}
	return nil
}

// ask returns the next batch of each host that has one. A silent host is asked in a later round.
func (c *Biller) ask(ctx context.Context, hosts []pando.Host) (out []delivery) {
	ctx, cancel := context.WithTimeout(ctx, billWaitMax)
	defer cancel()
	each, slots := make([]delivery, len(hosts)), make(chan struct{}, billAskers)
	var wg sync.WaitGroup
	for n, h := range hosts {
		if c.silent(h.Name) != nil {
			continue
		}
		c.mirror.Mu.RLock()
		after := c.mirror.World.Marks[h.Name].V
		c.mirror.Mu.RUnlock()
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			b, err := c.peers.Work(ctx, h, after)
			if err != nil || len(b.Lines) == 0 {
				return
			}
			each[n] = delivery{b, pando.WorkMark{Host: h.Name, Journal: b.Journal, Number: b.Number,
				At: c.mirror.Clock.Now()}}
		})
	}
	wg.Wait()
	return slices.DeleteFunc(each, func(d delivery) bool { return len(d.Lines) == 0 })
}

// Bills implements pando.Biller.
func (c *Biller) Bills(_ context.Context, q pando.BillQuery) ([]pando.BillLine, error) {
	switch q.By {
	case "", pando.BillByHour, pando.BillByDay, pando.BillByMonth:
	default:
		return nil, fmt.Errorf("%w: a bill by %q: want hour, day or month", pando.ErrInvalid, q.By)
	}
	c.mirror.Mu.RLock()
	defer c.mirror.Mu.RUnlock()
	return billLines(c.mirror.World, q, c.mirror.Clock.Now()), nil
}
