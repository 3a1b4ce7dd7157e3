// Package steer keeps the steering of one host as its records want it. One goroutine works a queue
// of services: it builds the newest table of each, publishes it, and keeps a result per service.
//
// A service is queued at most once, so the number of services bounds the queue. A failure is
// retried with a growing wait and delays no other service. It never decides the contents of a
// table: its Source does.
package steer

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"pando.run/pando"
)

// A failed job waits between these bounds for its next attempt. The wait doubles after each
// failure.
const (
	RetryWaitMin = 50 * time.Millisecond
	RetryWaitMax = 5 * time.Second
)

// Source returns the wanted steering, from the newest records. The queue calls it from its
// goroutine and holds no lock during the call.
type Source interface {
	// Table returns the wanted table of a service.
	Table(s pando.ServiceKey) (pando.SteeringTable, Action)
	// Neighbours returns the other hosts.
	Neighbours() []pando.Host
}

// Action is the result of comparing a service with its records.
type Action int

// These are the actions for a service.
const (
	Publish  Action = iota // by its table
	Withdraw               // it has no record
	Keep                   // its records are not complete: the table in force stays
)

// Change numbers the wanted changes of one host's steering, in order.
type Change uint64

// Status is the result of one service.
type Status struct {
	Wanted  Change    // the newest change
	Tried   Change    // the newest change that an attempt included
	Applied Change    // the newest change that is in force
	Err     error     // of the last attempt; nil: it succeeded
	Next    time.Time // of the next attempt after a failure
}

// Queue publishes tables until the context of Run ends.
type Queue struct {
	steering pando.Steering
	source   Source
	clock    pando.Clock
	log      *slog.Logger
	watch    func(t pando.SteeringTable, lost []netip.Addr, gone bool)

	mu      sync.Mutex
	busy    bool // with a job that has left ready
	last    Change
	lines   map[job]*line
	failing map[job]*line // since their last attempt
	due     time.Time     // no failed job is due earlier; zero: none fails
	scans   int           // of the failed jobs
	ready   []job         // to do now, in the order in which they were wanted
	filled  chan struct{} // holds an element when ready may have a job
	figures pando.SteeringFigures
}

// job names one thing to do. Only a publishTable job has a service.
type job struct {
	kind    kind
	service pando.ServiceKey
}

type kind string

const (
	publishTable kind = "publish a steering table" // or withdraw it
	findWays     kind = "find the way to other hosts"
	listSteered  kind = "list the steered services"
)

// line is the state of one job. The lock of the queue guards it.
type line struct {
	Status
	queued  bool
	wait    time.Duration        // between the last failure and the next attempt
	since   time.Time            // of the first failure in a row
	inForce *pando.SteeringTable // nil: not known
	waiters []*waiter            // in the order in which they began
}

// waiter waits until a change is in force, or until it was tried.
type waiter struct {
	change Change
	tried  bool // an attempt is enough
	done   chan struct{}
}

func (w waiter) over(s Status) bool {
	if w.tried {
		return s.Tried >= w.change
	}
	return s.Applied >= w.change
}

// New returns a queue. Run works it.
func New(s pando.Steering, from Source, c pando.Clock, log *slog.Logger) *Queue {
	return &Queue{
		steering: s, source: from, clock: c, log: log,
		lines: map[job]*line{}, failing: map[job]*line{}, filled: make(chan struct{}, 1),
	}
}

// Watch calls f with each table that comes into force, and with the hosts that it leaves out. The
// last call for a service has gone set. The caller calls Watch before Run. f must not wait.
func (q *Queue) Watch(f func(t pando.SteeringTable, lost []netip.Addr, gone bool)) { q.watch = f }

// Settled reports whether each change so far was attempted.
func (q *Queue) Settled() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.ready) == 0 && !q.busy
}

// Changed queues a service after a change that may affect its table. It never waits. The caller
// changes the records first and calls Changed afterwards.
func (q *Queue) Changed(s pando.ServiceKey) { q.want(job{publishTable, s}) }

// NeighboursChanged queues the list of the other hosts.
func (q *Queue) NeighboursChanged() { q.want(job{kind: findWays}) }

// WithdrawStrangers queues a comparison of the steered services with the records. Services without
// a record were published by a former agent and are withdrawn.
func (q *Queue) WithdrawStrangers() { q.want(job{kind: listSteered}) }

func (q *Queue) want(j job) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.lines[j]
	if l == nil {
		l = &line{}
		q.lines[j] = l
	}
	q.last++
	l.Wanted = q.last
	q.push(j, l)
}

// push appends a job to the ready ones unless it is there already. The caller holds the lock.
func (q *Queue) push(j job, l *line) {
	if l.queued {
		return
	}
	l.queued = true
	q.ready = append(q.ready, j)
	select {
	case q.filled <- struct{}{}:
	default:
	}
}

// Status returns the result of a service. It is zero for a service without a change, and after
// its withdrawal.
func (q *Queue) Status(s pando.ServiceKey) Status {
	q.mu.Lock()
	defer q.mu.Unlock()
	if l := q.lines[job{publishTable, s}]; l != nil {
		return l.Status
	}
	return Status{}
}

// Unreached returns the reason why tables in force leave out hosts, or "" if none does.
func (q *Queue) Unreached() string {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, l := range q.failing {
		if e, ok := errors.AsType[*pando.UnreachedError](l.Err); ok {
			return e.Error()
		}
		if e, ok := errors.AsType[*pando.TakenError](l.Err); ok {
			return e.Error()
		}
	}
	return ""
}

// Figures returns the counts of the queue since its start.
func (q *Queue) Figures() pando.SteeringFigures {
	q.mu.Lock()
	defer q.mu.Unlock()
	f := q.figures
	f.Waiting, f.Failing = len(q.ready), len(q.failing)
	return f
}

// InForce returns a channel that is closed once every change of a service so far is in force. The
// caller calls stop when it waits no longer.
func (q *Queue) InForce(s pando.ServiceKey) (done <-chan struct{}, stop func()) {
	return q.await(s, false)
}

// Tried returns a channel that is closed once every change of a service so far was attempted. The
// caller calls stop when it waits no longer.
func (q *Queue) Tried(s pando.ServiceKey) (done <-chan struct{}, stop func()) {
	return q.await(s, true)
}

func (q *Queue) await(s pando.ServiceKey, tried bool) (<-chan struct{}, func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w := &waiter{tried: tried, done: make(chan struct{})}
	l := q.lines[job{publishTable, s}]
	if l != nil {
		w.change = l.Wanted
	}
	if l == nil || w.over(l.Status) {
		close(w.done)
		return w.done, func() {}
	}
	l.waiters = append(l.waiters, w)
	return w.done, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		l.waiters = slices.DeleteFunc(l.waiters, func(o *waiter) bool { return o == w })
	}
}

// Wait waits until every change of a service so far is in force.
func (q *Queue) Wait(ctx context.Context, s pando.ServiceKey) error {
	done, stop := q.InForce(s)
	defer stop()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Run works the queue until ctx ends.
func (q *Queue) Run(ctx context.Context) {
	for ctx.Err() == nil {
		j, next, ok := q.take()
		if ok {
			q.do(ctx, j)
			continue
		}
		var timer <-chan time.Time
		stop := func() {}
		if next > 0 {
			timer, stop = q.clock.After(next)
		}
		select {
		case <-ctx.Done():
		case <-q.filled:
		case <-timer:
		}
		stop()
	}
}

// take removes the oldest ready job. If there is none, it returns the time until the next retry, or
// zero if no job is due later.
func (q *Queue) take() (j job, next time.Duration, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.busy, next = false, q.retryDue(q.clock.Now())
	if len(q.ready) == 0 {
		return j, next, false
	}
	j, q.ready, q.busy = q.ready[0], q.ready[1:], true
	q.lines[j].queued = false
	return j, 0, true
}

// retryDue makes the failed jobs ready that are due. It returns the time until the first of the
// others is due, or zero. It looks at all of them only when one may be due, so a healthy service
// does not pay for thousands of failing ones. The caller holds the lock.
func (q *Queue) retryDue(now time.Time) (next time.Duration) {
	if left := q.due.Sub(now); q.due.IsZero() || left > 0 {
		return max(0, left)
	}
	q.scans++
	defer func() {
		q.due = time.Time{}
		if next > 0 {
			q.due = now.Add(next)
		}
	}()
	for _, j := range slices.SortedFunc(maps.Keys(q.failing), compareJobs) {
		l := q.failing[j]
		if left := l.Next.Sub(now); left <= 0 {
			q.push(j, l)
		} else if next == 0 || left < next {
			next = left
		}
	}
	return next
}
