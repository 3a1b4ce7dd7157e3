package control

import (
	"context"
	"fmt"
	"strings"
	"time"

	"pando.run/pando"
	"pando.run/pando/world"
)

// These times detect a pause of this process. It looks at the clock every beatWait. A gap of
// pauseMin between two looks is a pause.
const (
	beatWait = 500 * time.Millisecond
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
	now = c.mirror.Clock.Now()
	if p := &c.pulse; !p.last.IsZero() && now.Sub(p.last) >= pauseMin {
		p.until = now.Add(pando.HostLease)
		c.mirror.Log.Warn("the server stood still: hosts that are missing now have one lease to come back",
			"seconds", now.Sub(p.last).Seconds())
	}
	c.pulse.last = now
	return now
}

// watchPauses keeps the pulse until ctx ends.
func (c *Control) watchPauses(ctx context.Context) {
	for {
		c.mirror.Mu.Lock()
		c.beat()
		c.mirror.Mu.Unlock()
		if pando.Sleep(ctx, c.mirror.Clock, beatWait) != nil {
			return
		}
	}
}

// frozenWait is the time between two looks at a frozen service. A change of its records is seen at
// once.
const frozenWait = time.Minute

// holdsStill returns why no decision is made about a service yet, and the time of the next look.
// One of its records cannot be read, or one of its hosts is missing since a pause of this process.
// The caller holds the lock.
func (c *Control) holdsStill(s pando.ServiceKey) (until time.Time, err error) {
	now := c.beat()
	if err := c.mirror.World.Frozen(s); err != nil {
		return now.Add(frozenWait), err
	}
	if err := c.mirror.World.Blind(pando.KindService); err != nil && !c.mirror.World.Services[s].V.VIP4.IsValid() {
		return now.Add(frozenWait), fmt.Errorf("no address is chosen for it: %w", err)
	}
	if err := c.mirror.OnFrozenHost(s); err != nil {
		return now.Add(frozenWait), err
	}
	if err := c.awaitsAdoption(now); err != nil {
		return now.Add(adoptionLook), err
	}
	if err := c.awaitsAdrift(s, now); err != nil {
		return now.Add(adoptionLook), err
	}
	return c.pulse.until, c.missing(s, now)
}

// After a restore, hosts bring back what the backup lacks. Until each member has done so, and at
// most for adoptionWait, a decision would count too few instances.
const (
	adoptionWait = 30 * time.Second
	adoptionLook = 250 * time.Millisecond
)

// awaitsAdoption returns an error while a member may still bring instances into a restored store.
// The caller holds the lock.
func (c *Control) awaitsAdoption(now time.Time) error {
	own := c.mirror.World.Cluster.V
	if own.Generation < 2 || now.After(own.Restored.Add(pando.AdoptionTime)) {
		return nil
	}
	if c.adoption.generation != own.Generation {
		c.adoption.generation, c.adoption.until = own.Generation, now.Add(adoptionWait)
	}
	if !now.Before(c.adoption.until) {
		return nil
	}
	for name := range c.mirror.World.Members {
		if h, here := c.mirror.World.Hosts[name]; !here || h.V.Adopted < own.Generation {
			return fmt.Errorf("%w: the store was restored, and host %s may bring back what runs there "+
				"until %s", pando.ErrUnavailable, name, c.adoption.until.Format(time.TimeOnly))
		}
	}
	c.adoption.until = now
	return nil
}

// adriftWait is how long a service that is back after a restore waits for its instances that run
// without a record. Its host writes them in less than a second.
const adriftWait = 10 * time.Second

// errAdrift is the error of a decision that waits for instances without a record.
var errAdrift = fmt.Errorf("%w", pando.ErrUnavailable)

// awaitsAdrift returns errAdrift while a host may still bring back an instance of a service that was
// deployed again after a restore. Without the wait, a new instance would run beside it. The caller
// holds the lock.
func (c *Control) awaitsAdrift(s pando.ServiceKey, now time.Time) error {
	own := c.mirror.World.Cluster.V
	if own.Generation < 2 || now.After(own.Restored.Add(pando.AdoptionTime)) {
		c.adoption.adrift = nil
		return nil
	}
	if c.mirror.World.Services[s].Modified == 0 {
		return nil
	}
	for name, h := range c.mirror.World.Hosts {
		for word := range strings.FieldsSeq(h.V.Adrift) {
			of, id := pando.ParseAdrift(word)
			if _, back := c.mirror.World.Instances[id]; back || of != s {
				continue
			}
			if c.adoption.adrift == nil {
				c.adoption.adrift = map[pando.ServiceKey]time.Time{}
			}
			until, waits := c.adoption.adrift[s]
			if !waits {
				until = now.Add(adriftWait)
				c.adoption.adrift[s] = until
			}
			if now.Before(until) {
				return fmt.Errorf("%w: instance %s runs on host %s without a record since the restore; "+
					"it may come back until %s", errAdrift, id, name, until.Format(time.TimeOnly))
			}
		}
	}
	return nil
}

// missing returns an error if one of a service's hosts may still come back after a pause. The
// caller holds the lock.
func (c *Control) missing(s pando.ServiceKey, now time.Time) error {
	if !now.Before(c.pulse.until) {
		return nil
	}
	missing := c.mirror.World.Services[s].V.Home
	if _, here := c.mirror.World.Hosts[missing]; here || missing == "" {
		missing, _ = world.FindHost(c.mirror.World, s, func(h pando.HostName) bool {
			_, here := c.mirror.World.Hosts[h]
			return !here
		})
	}
	if missing == "" {
		return nil
	}
	return fmt.Errorf("%w: the server stood still, and host %s may come back until %s",
		pando.ErrUnavailable, missing,
		c.pulse.until.Format(time.TimeOnly))
}
