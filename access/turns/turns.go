// Package turns bounds work that several owners do at once, such as pulls of images on one host.
// Each owner has at most a share of the turns, so one owner with slow work never keeps all others
// waiting. Those who wait get their turns in order, past the ones whose owner has its share.
//
// It never refuses work for its kind or size. A turn ends when its holder gives it back.
package turns

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"pando.run/pando"
)

// Bound is how many turns there are.
type Bound struct {
	Total   int // at once
	Each    int // at once, of one owner
	Reserve int // of Total: only operators get these
	Waiting int // of one owner that wait; more are refused. Zero: any number
}

// Queue gives turns to owners. Make it with New. Its methods may be called at the same time.
type Queue[O comparable] struct {
	bound Bound

	mu      sync.Mutex
	active  int       // of owners and operators
	owners  int       // of owners
	of      map[O]int // active turns; no entry is 0
	waiting []*waiter[O]
}

type waiter[O comparable] struct {
	asker[O]
	turn chan struct{} // closed when it is its turn
}

// asker is who takes a turn. Operators have no share: they may take every turn that is free.
type asker[O comparable] struct {
	owner    O
	operator bool
}

// New returns an empty queue.
func New[O comparable](b Bound) *Queue[O] { return &Queue[O]{bound: b, of: map[O]int{}} }

// Take waits for a turn of an owner, until ctx ends. The caller calls done once, at the end of its
// work. waits, unless it is nil, gets the reason of a wait.
func (q *Queue[O]) Take(ctx context.Context, o O, waits func(why string)) (done func(), err error) {
	return q.take(ctx, asker[O]{owner: o}, waits)
}

// TakeAsOperator waits for a turn of an operator.
func (q *Queue[O]) TakeAsOperator(ctx context.Context, waits func(why string)) (done func(), err error) {
	return q.take(ctx, asker[O]{operator: true}, waits)
}

func (q *Queue[O]) take(ctx context.Context, a asker[O], waits func(why string)) (done func(), err error) {
	done = func() { q.end(a) }
	q.mu.Lock()
	if q.free(a) {
		q.begin(a)
		q.mu.Unlock()
		return done, nil
	}
	own := 0
	for _, w := range q.waiting {
		if w.asker == a {
			own++
		}
	}
	if q.bound.Waiting > 0 && own >= q.bound.Waiting {
		q.mu.Unlock()
		return nil, fmt.Errorf("%w: %d wait for a turn already; try again later", pando.ErrRefused, own)
	}
	w := &waiter[O]{a, make(chan struct{})}
	q.waiting = append(q.waiting, w)
	why := q.why(a)
	q.mu.Unlock()
	if waits != nil {
		waits(why)
	}
	select {
	case <-w.turn:
		return done, nil
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if at := slices.Index(q.waiting, w); at >= 0 {
		q.waiting = slices.Delete(q.waiting, at, at+1)
	} else { // its turn came at the same moment
		q.give(a)
	}
	return nil, ctx.Err()
}

// why says what an asker waits for. The caller holds the lock.
func (q *Queue[O]) why(a asker[O]) string {
	if a.operator {
		return fmt.Sprintf("a turn: %d of %d are taken", q.active, q.bound.Total)
	}
	return fmt.Sprintf("a turn: %d of %d are taken, %d of them by its owner, who has at most %d",
		q.active, q.bound.Total, q.of[a.owner], q.bound.Each)
}

func (q *Queue[O]) free(a asker[O]) bool {
	if q.active >= q.bound.Total || a.operator {
		return q.active < q.bound.Total
	}
	return q.owners < q.bound.Total-q.bound.Reserve && q.of[a.owner] < q.bound.Each
}

func (q *Queue[O]) begin(a asker[O]) { q.count(a, 1) }

// count adds to the turns of an asker.
func (q *Queue[O]) count(a asker[O], n int) {
	q.active += n
	if a.operator {
		return
	}
	q.owners += n
	if q.of[a.owner] += n; q.of[a.owner] == 0 {
		delete(q.of, a.owner)
	}
}

func (q *Queue[O]) end(a asker[O]) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.give(a)
}

// give returns a turn of an asker to those who wait.
func (q *Queue[O]) give(a asker[O]) {
	q.count(a, -1)
	q.waiting = slices.DeleteFunc(q.waiting, func(w *waiter[O]) bool {
		if !q.free(w.asker) {
			return false
		}
		q.begin(w.asker)
		close(w.turn)
		return true
	})
}
