package agent

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"pando.run/pando"
)

// A failed steering change waits between these bounds for its next attempt. The wait doubles after
// each failure.
const (
	debtWaitMin = 50 * time.Millisecond
	debtWaitMax = 5 * time.Second
)

// errandKind names a change of this host's steering.
type errandKind string

const (
	publishTable errandKind = "publish a steering table" // or withdraw it
	findWays     errandKind = "find the way to other hosts"
	listSteered  errandKind = "list the steered services"
)

// errand is one such change. Only publishTable has a service.
type errand struct {
	kind    errandKind
	service pando.ServiceKey
}

// debt is a failed errand that the agent retries. An agent has at most one per service and two
// more.
type debt struct {
	wait  time.Duration
	due   time.Time
	since time.Time
	err   error
}

// did records the result of an errand. The caller holds the lock.
func (a *Agent) did(e errand, err error) {
	now, d := a.Clock.Now(), a.debts[e]
	switch {
	case a.ctx.Err() != nil: // the agent ends: the next one begins anew
	case err == nil && d == nil:
	case err == nil:
		delete(a.debts, e)
		a.Log.Info("the steering is as it should be again", "after", now.Sub(d.since), "what", e.kind, "service", e.service)
		a.announce()
		for _, r := range a.crews[e.service] {
			r.kick() // it may wait for its table
		}
	case d == nil:
		a.debts[e] = &debt{wait: debtWaitMin, due: now.Add(debtWaitMin), since: now, err: err}
		a.Log.Error(string(e.kind)+": it failed and is tried again", "service", e.service, "error", err)
		select {
		case a.owing <- struct{}{}:
		default:
		}
	default:
		d.err = err
		if !now.Before(d.due) {
			d.wait = min(2*d.wait, debtWaitMax)
			d.due = now.Add(d.wait)
		}
	}
}

// inForce reports whether the newest table of a service is in force. The caller holds the lock.
func (a *Agent) inForce(s pando.ServiceKey) bool { return a.debts[errand{publishTable, s}] == nil }

// payDebts retries each failed errand when it is due.
func (a *Agent) payDebts(ctx context.Context) {
	for ctx.Err() == nil {
		a.mu.Lock()
		now := a.Clock.Now()
		for _, e := range slices.SortedFunc(maps.Keys(a.debts), compareErrands) {
			if !now.Before(a.debts[e].due) {
				a.run(e)
			}
		}
		var timer <-chan time.Time
		stop := func() {}
		if len(a.debts) > 0 {
			next := slices.MinFunc(slices.Collect(maps.Values(a.debts)), func(x, y *debt) int { return x.due.Compare(y.due) })
			timer, stop = a.Clock.After(next.due.Sub(now))
		}
		a.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-a.owing:
		case <-timer:
		}
		stop()
	}
}

func compareErrands(x, y errand) int {
	return cmp.Or(cmp.Compare(x.kind, y.kind), x.service.Compare(y.service))
}

// run executes an errand. The caller holds the lock.
func (a *Agent) run(e errand) {
	switch e.kind {
	case publishTable:
		a.publish(e.service)
	case findWays:
		a.meetNeighbours()
	case listSteered:
		a.forgetStrangers()
	}
}
