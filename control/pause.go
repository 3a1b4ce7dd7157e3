package control

import (
	"context"
	"fmt"
	"time"

	"pando.run/pando"
)

// These times detect a pause of this process. It looks at the clock every beatWait. A gap of
// pauseMin between two looks is a pause.
const (
	beatWait = 250 * time.Millisecond
	pauseMin = 2 * time.Second
)

// pulse is the time of this process's last look at the clock, and the end of the grace period for
// missing hosts. Leases end in the store while the server is paused and renews none. A live host
// joins again at once, so one lease is enough.
type pulse struct {
	last  time.Time
	until time.Time
}

// beat looks at the clock. The caller holds the lock.
func (c *Control) beat() (now time.Time) {
	now = c.Clock.Now()
	if p := &c.pulse; !p.last.IsZero() && now.Sub(p.last) >= pauseMin {
		p.until = now.Add(pando.HostLease)
		c.Log.Warn("the server stood still: hosts that are missing now have one lease to come back",
			"seconds", now.Sub(p.last).Seconds())
	}
	c.pulse.last = now
	return now
}

// watchPauses keeps the pulse until ctx ends.
func (c *Control) watchPauses(ctx context.Context) {
	for {
		c.mu.Lock()
		c.beat()
		c.mu.Unlock()
		if pando.Sleep(ctx, c.Clock, beatWait) != nil {
			return
		}
	}
}

// holdsStill returns why no decision is made about a service yet: one of its hosts is missing since
// a pause of this process. The caller holds the lock.
func (c *Control) holdsStill(s pando.ServiceKey) error {
	now := c.beat()
	if !now.Before(c.pulse.until) {
		return nil
	}
	missing := c.world.Services[s].V.Home
	if _, here := c.world.Hosts[missing]; here || missing == "" {
		missing = ""
		for _, i := range c.world.Of(s) {
			if _, here := c.world.Hosts[i.Host]; !here {
				missing = i.Host
			}
		}
	}
	if missing == "" {
		return nil
	}
	return fmt.Errorf("%w: the server stood still, and host %s may come back until %s",
		pando.ErrUnavailable, missing,
		c.pulse.until.Format(time.TimeOnly))
}
