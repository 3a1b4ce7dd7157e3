package sim

import (
	"math/rand/v2"
	"sync"
	"time"

	"pando.run/pando"
)

// chaos runs random events for a while. Operators change their minds, clients come and go,
// processes and instances are killed, the store is slow, full, away, or loses its answers. After it
// returns, nothing fails and the applications make no further requests.
func (c *cluster) chaos(operators []*operator) {
	stop := make(chan struct{})
	var actors sync.WaitGroup
	act := func(name string, every time.Duration, f func(*rand.Rand)) {
		actors.Add(1)
		go func() {
			defer actors.Done()
			for n := uint64(0); ; n++ {
				dice := c.dice(name, n)
				select {
				case <-stop:
					return
				case <-time.After(time.Duration(dice.Int64N(int64(2 * every)))):
					f(dice)
				}
			}
		}()
	}
	for _, o := range operators {
		if o.key == contested {
			continue // its clients are those of the history
		}
		act("operator "+string(o.key.Name), 4*time.Second, func(*rand.Rand) { _ = o.change() })
	}
	for _, h := range c.hosts {
		act("clients "+string(h.record.Name), 30*time.Millisecond, h.visit)
	}
	c.contest(act)
	if !c.lean {
		c.hurt(act)
	}
	nap(chaosTime)
	close(stop)
	actors.Wait()
	c.registry.Fail(nil)
	c.registry.Lose(0)
	c.mu.Lock()
	c.quiet = true
	c.mu.Unlock()
}

// hurt adds the actors that hurt the store, the processes and the instances.
func (c *cluster) hurt(act func(name string, every time.Duration, f func(*rand.Rand))) {
	act("store", 3*time.Second, c.hurtStore)
	act("controls", 5*time.Second,
		func(d *rand.Rand) { c.restart(c.controls[d.IntN(len(c.controls))], d, time.Second) })
	for _, h := range c.hosts {
		act("agent "+string(h.record.Name), 4*time.Second, func(d *rand.Rand) { h.hurt(d) })
		act("instances "+string(h.record.Name), 3*time.Second, h.crashOne)
	}
}

// hurtStore makes the store fail for a while, in one way.
func (c *cluster) hurtStore(d *rand.Rand) {
	switch d.IntN(4) {
	case 0:
		c.registry.Fail(pando.ErrUnavailable)
	case 1:
		c.registry.Fail(pando.ErrStoreFull)
	case 2:
		c.registry.Lose(0.3)
	default:
		c.depose(d)
	}
	nap(time.Duration(d.IntN(1500)) * time.Millisecond)
	c.registry.Fail(nil)
	c.registry.Lose(0)
}

// depose ends the leadership, or the epoch of a host, without notice to its holder.
func (c *cluster) depose(d *rand.Rand) {
	k := pando.LeaderKey("control")
	if d.IntN(2) == 0 {
		k = pando.LeaderKey("host-" + string(c.hosts[d.IntN(len(c.hosts))].record.Name))
	}
	var created pando.StoreRevision
	for _, b := range c.registry.History() {
		for _, r := range b.Changes {
			if r.Key == k {
				created = r.Created
			}
		}
	}
	c.registry.Depose(pando.Fence{Key: k, Created: created})
}

// restart kills a process at one of its next steps, and starts it again after a while.
func (c *cluster) restart(p *process, d *rand.Rand, away time.Duration) {
	p.killSoon(1+d.IntN(12), d.IntN(2) == 0)
	nap(time.Duration(d.Int64N(int64(away))))
	p.start()
}

// hurt kills the agent, sometimes for so long that the host counts as lost, and sometimes together
// with the whole machine.
func (h *host) hurt(d *rand.Rand) {
	away := 500 * time.Millisecond
	if d.IntN(8) == 0 {
		away = 20 * time.Second
	}
	h.killSoon(1+d.IntN(25), d.IntN(2) == 0)
	if d.IntN(6) == 0 {
		h.reboot()
	}
	nap(time.Duration(d.Int64N(int64(away))))
	h.start()
}

func (h *host) crashOne(d *rand.Rand) {
	if boxes := h.sandboxes.All(); len(boxes) > 0 {
		boxes[d.IntN(len(boxes))].Crash()
	}
}

// visit opens a flow that lasts a while.
func (h *host) visit(d *rand.Rand) {
	began := h.c.accounts.now()
	i, ok := h.steering.Open(service)
	if !ok {
		return
	}
	h.c.accounts.noteTurn(i, began, stepFlow, false)
	if h.c.promises.isHalted(i) {
		h.c.t.Errorf("a flow on %s reached %s after its halt was acknowledged", h.name, i)
	}
	length := time.Duration(d.IntN(3000)) * time.Millisecond
	h.c.go_(func() {
		nap(length)
		h.steering.End(i)
	})
}
