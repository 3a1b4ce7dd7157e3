package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pando.run/pando"
)

// These bounds separate an overloaded instance from a dead one.
const (
	// workingShare is the least processor time of an instance that works, of the time that passed.
	// A program that waits for a lock uses none.
	workingShare = 0.02
	// strayMax is how long one instance may be overloaded while another one of the service answers, on
	// whatever host. Its trouble is then its own, such as an endless loop.
	strayMax = time.Minute
)

// overload is the memory about an instance that is alive and does not answer in time.
type overload struct {
	used  time.Duration // processor time at the last look
	seen  time.Time     // the last look; zero: none
	since time.Time     // of the first look without an answer; zero: it answers
}

// isOverloaded reports whether a failed probe shows overload: the instance works, and is too busy
// to answer. Such an instance gets fewer flows and stays.
func (r *runner) isOverloaded(ctx context.Context, box pando.Sandbox, failed error) bool {
	now, o := r.a.Clock.Now(), &r.watch.overload
	u, err := box.Usage(ctx)
	was := *o
	o.used, o.seen = u.CPU, now
	if err != nil || !errors.Is(failed, pando.ErrBusy) {
		o.since = time.Time{}
		return false
	}
	if o.since.IsZero() {
		o.since = now
	}
	if now.Sub(o.since) >= strayMax && r.a.crews.answers(r) {
		return false
	}
	if was.seen.IsZero() {
		return true // the next probe has two looks
	}
	return u.CPU-was.used >= time.Duration(workingShare*float64(now.Sub(was.seen)))
}

// lowerWeight lowers the share of an overloaded instance.
func (r *runner) lowerWeight(failed error) {
	r.watch.falls = 0
	r.setWeight(unwellWeight, fmt.Sprintf("overloaded: a quarter of its share of new flows, until it "+
		"answers again: %v", failed))
}

// answers reports whether another instance of a service serves with its whole share, here or on a
// host that is alive.
func (c *crews) answers(r *runner) bool {
	c.records.Lock()
	defer c.records.Unlock()
	for _, o := range c.of[r.service] {
		if o.id == r.id {
			continue
		}
		s := c.current(o)
		if s.runs && s.inst.Phase == pando.PhaseInRotation && s.inst.Weight == wholeWeight {
			return true
		}
	}
	e := c.records.World.Endpoints[r.service].V
	for _, t := range e.Seats {
		_, here := c.records.World.Hosts[e.HostOf(t)]
		if c.runners[t.Instance] == nil && here && t.Phase.TakesFlows() && t.Weight == wholeWeight {
			return true
		}
	}
	return false
}
