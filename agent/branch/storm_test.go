package branch

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/sim"
)

// Hosts die and come back, links break, records arrive late, in any order. Every acknowledged line
// is in main in the end, each once.
func TestNoAcknowledgedCommitIsLostOrDoubled(t *testing.T) {
	lines, merges, moves := 0, 0, 0
	seeds := uint64(2)
	if testing.Short() {
		seeds = 1
	}
	for seed := range seeds {
		inTown(t, 4, 2, func(c *town) {
			c.await("whole", c.whole)
			n := c.storm(rand.New(rand.NewPCG(seed, 7)))
			lines, merges, moves = lines+n, merges+c.merges, moves+c.moves
		})
	}
	t.Logf("%d acknowledged commits, %d merges, the keeper moved %d times: 0 lost, 0 doubled",
		lines, merges, moves)
}

// storm runs instances on all hosts while they are hurt. It returns the acknowledged lines.
func (c *town) storm(d *rand.Rand) int {
	stop := make(chan struct{})
	var actors sync.WaitGroup
	var mu sync.Mutex
	acked, tried := []string{}, map[string]bool{}
	over := func() bool {
		select {
		case <-stop:
			return true
		default:
			return false
		}
	}
	for name, h := range c.hosts {
		dice := rand.New(rand.NewPCG(d.Uint64(), 3))
		actors.Go(func() {
			for life := 0; !over(); life++ {
				i := pando.InstanceID(fmt.Sprintf("web-%s-%d", name, life))
				c.create(h, i)
				for n := 0; !over() && dice.IntN(30) > 0; n++ {
					line := fmt.Sprint(i, " ", n)
					mu.Lock()
					tried[line] = true
					mu.Unlock()
					if err := h.hit(i, line); err == nil {
						mu.Lock()
						acked = append(acked, line)
						mu.Unlock()
					}
					if dice.IntN(3) == 0 {
						_ = h.push(i)
					}
					_ = pando.Sleep(c.ctx, sim.Clock{}, time.Duration(dice.IntN(300))*time.Millisecond)
				}
				h.forget(i)
				c.change(func() { delete(c.seats, i) }) // its program has ended
			}
		})
	}
	for range 25 {
		c.hurt(d)
	}
	c.calm()
	close(stop)
	actors.Wait()
	c.change(func() { clear(c.seats) })
	for _, h := range c.hosts { // all programs end: their agents begin anew
		h.kill()
		h.start()
	}
	c.await("whole", c.whole)
	want := slices.Sorted(slices.Values(acked))
	c.await("in main", func() bool { return c.missing(want) == "" })
	c.verify(tried)
	return len(acked)
}

// forget ends an instance's branch in memory, as its runner does.
func (h *townHost) forget(i pando.InstanceID) {
	h.mu.Lock()
	b := h.agent
	h.mu.Unlock()
	if b != nil {
		b.Forget(i)
	}
}

// hurt does one harm for a while.
func (c *town) hurt(d *rand.Rand) {
	names := []pando.HostName{"h1", "h2", "h3", "h4"}
	h := c.hosts[names[d.IntN(4)]]
	rest := func(most int) {
		_ = pando.Sleep(c.ctx, sim.Clock{}, time.Duration(d.IntN(most))*time.Millisecond)
		c.decide()
	}
	switch d.IntN(5) {
	case 0: // a short death
		h.kill()
		rest(500)
		h.start()
	case 1: // a long one
		h.kill()
		rest(300)
		h.expire()
		rest(6000)
		h.start()
	case 2: // its lease ends, and it lives
		h.expire()
		rest(4000)
		h.change(func() { h.lease = true })
	case 3: // it learns late
		h.change(func() { h.lag = true })
		rest(2000)
		h.change(func() { h.lag = false })
	default:
		pair := [2]pando.HostName{h.name, names[d.IntN(4)]}
		c.change(func() { c.cut[pair] = true })
		rest(4000)
		c.change(func() { delete(c.cut, pair) })
	}
	rest(2500)
}

func (c *town) calm() {
	c.change(func() { clear(c.cut) })
	c.await("whole", c.whole)
}

// missing returns a line that main lacks, or "".
func (c *town) missing(want []string) string {
	k := c.hosts[c.kept().Host]
	has := map[string]bool{}
	for line := range strings.Lines(k.read("log")) {
		has[strings.TrimSpace(line)] = true
	}
	for _, line := range want {
		if !has[line] {
			return line
		}
	}
	return ""
}

// verify checks that main has each line once, only lines that were written, and as many hits.
func (c *town) verify(tried map[string]bool) {
	k := c.hosts[c.kept().Host]
	seen := map[string]int{}
	for line := range strings.Lines(k.read("log")) {
		line = strings.TrimSpace(line)
		if seen[line]++; seen[line] == 2 || !tried[line] {
			c.Errorf("main has line %q %d times; it was written: %v", line, seen[line], tried[line])
		}
	}
	if got := k.read("hits"); got != fmt.Sprint(len(seen)) {
		c.Errorf("main has %s hits and %d lines", got, len(seen))
	}
}
