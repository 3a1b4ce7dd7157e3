package control

import (
	"errors"
	"fmt"
	"time"

	"pando.run/pando"
	"pando.run/pando/control/decide"
)

// unwrittenPatience is how long writes of decisions about a service may fail before its status
// reports that. A conflict or a restart of the store is over sooner.
const unwrittenPatience = 2 * time.Second

// unwritten is a run of failed writes without a success.
type unwritten struct {
	since time.Time
	times int
	last  error
}

// failed counts a decision about a service that could not be written. The caller holds the lock.
func (c *view) failed(s pando.ServiceKey, err error) {
	u, ok := c.unwritten[s]
	if !ok {
		u.since = c.Clock.Now()
	}
	u.times, u.last = u.times+1, err
	c.unwritten[s] = u
}

// written clears the failures, because the decision is in the store or there is none to write. The
// caller holds the lock.
func (c *view) written(s pando.ServiceKey) { delete(c.unwritten, s) }

// outcome records whether the store has room. While it is full, agents cannot record their steps.
func (c *view) outcome(err error) {
	c.tally.wrote(err)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		c.full = time.Time{}
	case errors.Is(err, pando.ErrStoreFull) && c.full.IsZero():
		c.full = c.Clock.Now()
	}
}

// unwrittenProblem returns the problem that decisions or records cannot be written, or
// nil. The caller holds the lock.
func (c *view) unwrittenProblem(s pando.ServiceKey) *pando.Decision {
	u, failing := c.unwritten[s]
	if !failing && c.full.IsZero() {
		return nil
	}
	p := &pando.Decision{Service: s, Kind: pando.DecidedUnwritten, By: decide.Self}
	switch now := c.Clock.Now(); {
	case failing && now.Sub(u.since) >= unwrittenPatience:
		p.At = u.since
		p.Reason = fmt.Sprintf("the next decision cannot be written (%d tries since %s): %v",
			u.times, clock(u.since), u.last)
		p.Inputs = map[string]float64{"tries": float64(u.times)}
	case !c.full.IsZero() && now.Sub(c.full) >= unwrittenPatience:
		p.At = c.full
		p.Reason = fmt.Sprintf("since %s %v: hosts cannot write records, and this status may be old",
			clock(c.full), pando.ErrStoreFull)
	default:
		return nil
	}
	return p
}

func clock(t time.Time) string { return t.UTC().Format("15:04:05Z") }
