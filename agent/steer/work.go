package steer

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"pando.run/pando"
)

func compareJobs(x, y job) int {
	return cmp.Or(cmp.Compare(x.kind, y.kind), x.service.Compare(y.service))
}

// do attempts one job and records the result.
func (q *Queue) do(ctx context.Context, j job) {
	q.mu.Lock()
	goal := q.lines[j].Wanted // the records that this attempt reads include it
	q.mu.Unlock()
	var err error
	done := false
	switch j.kind {
	case publishTable:
		done, err = q.publish(ctx, j)
	case findWays:
		err = q.steering.Neighbours(ctx, q.source.Neighbours())
	case listSteered:
		err = q.withdrawStrangers(ctx)
	}
	if ctx.Err() != nil {
		return // the next agent begins anew
	}
	q.record(j, goal, err, done)
}

// publish brings one service to its wanted table. withdrawn reports that the service is gone.
func (q *Queue) publish(ctx context.Context, j job) (withdrawn bool, err error) {
	t, action := q.source.Table(j.service)
	switch action {
	case Keep:
		return false, nil
	case Withdraw:
		q.forget(j)
		if err := q.steering.Withdraw(ctx, j.service); err != nil {
			return true, err
		}
		q.report(t, nil, true)
		return true, nil
	}
	q.mu.Lock()
	was := q.lines[j].inForce
	q.mu.Unlock()
	if was != nil && sameTable(*was, t) {
		return false, nil // most changes of a service change nothing here, and shares are slow
	}
	q.forget(j) // a failure leaves an unknown table
	begun := q.clock.Now()
	err = q.steering.Publish(ctx, t)
	if lost, partly := errors.AsType[*pando.UnreachedError](err); partly {
		q.report(t, lost.Hosts, false)
	} else if err == nil {
		q.report(t, nil, false)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.figures.Seconds += q.clock.Now().Sub(begun).Seconds()
	if err != nil {
		q.figures.Failed++
		return false, err
	}
	q.figures.Published++
	q.lines[j].inForce = &t
	return false, nil
}

// report passes a table in force to the watcher.
func (q *Queue) report(t pando.SteeringTable, lost []netip.Addr, gone bool) {
	if q.watch != nil {
		q.watch(t, lost, gone)
	}
}

// forget drops the table in force, so that the next attempt publishes.
func (q *Queue) forget(j job) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.lines[j].inForce = nil
}

func (q *Queue) withdrawStrangers(ctx context.Context) error {
	published, err := q.steering.Published(ctx)
	for _, s := range published {
		if _, action := q.source.Table(s); action == Withdraw {
			q.Changed(s)
		}
	}
	return err
}

// record keeps the result of an attempt that included the changes up to goal. It drops the line of
// a service that is gone.
func (q *Queue) record(j job, goal Change, err error, gone bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l, now := q.lines[j], q.clock.Now()
	l.Tried, l.Err = goal, err
	failed := q.failing[j] != nil
	switch {
	case err == nil:
		if failed {
			q.log.Info("the steering is as it should be again", "after", now.Sub(l.since),
				"what", string(j.kind), "service", j.service)
		}
		l.Applied, l.Next = goal, time.Time{}
		delete(q.failing, j)
	case !failed:
		q.log.Error(string(j.kind)+": it failed and is tried again", "service", j.service,
			"error", err)
		l.wait, l.since, l.Next = RetryWaitMin, now, now.Add(RetryWaitMin)
		q.failing[j] = l
	case !now.Before(l.Next): // an attempt for a new change does not make the retries rarer
		l.wait = min(2*l.wait, RetryWaitMax)
		l.Next = now.Add(l.wait)
	}
	if pando.InForce(err) {
		l.Applied = goal
	}
	if !l.Next.IsZero() && (q.due.IsZero() || l.Next.Before(q.due)) {
		q.due = l.Next
	}
	l.waiters = slices.DeleteFunc(l.waiters, func(w *waiter) bool {
		over := w.over(l.Status)
		if over {
			close(w.done)
		}
		return over
	})
	// A change between take and do is part of the goal, and its job is still queued.
	if gone && err == nil && l.Wanted == goal && !l.queued {
		delete(q.lines, j)
	}
}

func sameTable(x, y pando.SteeringTable) bool {
	return x.VIP4 == y.VIP4 && x.VIP6 == y.VIP6 && x.Via4 == y.Via4 && x.Via6 == y.Via6 &&
		x.By == y.By && x.At == y.At && x.Asleep == y.Asleep && slices.Equal(x.Names, y.Names) &&
		slices.Equal(x.Ports, y.Ports) && slices.EqualFunc(x.Endpoints, y.Endpoints, sameEndpoint)
}

func sameEndpoint(e, f pando.Endpoint) bool {
	return e.Instance == f.Instance && e.Revision == f.Revision && e.Weight == f.Weight &&
		e.Soon == f.Soon && e.Remote == f.Remote && e.Own4 == f.Own4 && e.Own6 == f.Own6 &&
		sameLink(e.Link, f.Link)
}

func sameLink(x, y pando.Link) bool {
	return x.IP4 == y.IP4 && x.IP6 == y.IP6 && x.IfIndex == y.IfIndex && x.Host == y.Host &&
		x.Netns == y.Netns && bytes.Equal(x.MAC, y.MAC) && bytes.Equal(x.HostMAC, y.HostMAC)
}
