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
	Waiting int // of one owner that wait; more are refused. Zero: any number
}

// Queue gives turns to owners. Make it with New. Its methods may be called at the same time.
type Queue[O comparable] struct {
	bound Bound

	mu      sync.Mutex
	active  int
	of      map[O]int // active turns; no entry is 0
	waiting []*waiter[O]
}

type waiter[O comparable] struct {
	owner O
	turn  chan struct{} // closed when it is its turn
}

// New returns an empty queue.
func New[O comparable](b Bound) *Queue[O] { return &Queue[O]{bound: b, of: map[O]int{}} }

// Take waits for a turn of an owner, until ctx ends. The caller calls done once, at the end of its
// work. waits, unless it is nil, gets the reason of a wait.
func (q *Queue[O]) Take(ctx context.Context, o O, waits func(why string)) (done func(), err error) {
	done = func() { q.end(o) }
	q.mu.Lock()
	if q.free(o) {
		q.begin(o)
		q.mu.Unlock()
		return done, nil
	}
	own := 0
	for _, w := range q.waiting {
		if w.owner == o {
			own++
		}
	}
	if q.bound.Waiting > 0 && own >= q.bound.Waiting {
		q.mu.Unlock()
		return nil, fmt.Errorf("%w: %d wait for a turn already; try again later", pando.ErrRefused, own)
	}
	w := &waiter[O]{o, make(chan struct{})}
	q.waiting = append(q.waiting, w)
	why := fmt.Sprintf("a turn: %d of %d are taken, %d of them by its owner, who has at most %d",
		q.active, q.bound.Total, q.of[o], q.bound.Each)
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
		q.give(o)
	}
	return nil, ctx.Err()
}

func (q *Queue[O]) free(o O) bool { return q.active < q.bound.Total && q.of[o] < q.bound.Each }

func (q *Queue[O]) begin(o O) {
	q.active++
	q.of[o]++
}

func (q *Queue[O]) end(o O) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.give(o)
}

// give returns a turn of an owner to those who wait.
func (q *Queue[O]) give(o O) {
	q.active--
	if q.of[o]--; q.of[o] == 0 {
		delete(q.of, o)
	}
	q.waiting = slices.DeleteFunc(q.waiting, func(w *waiter[O]) bool {
		if !q.free(w.owner) {
			return false
		}
		q.begin(w.owner)
		close(w.turn)
		return true
	})
}
