// Package share bounds what several owners take from one thing of a host or of the cluster:
// sessions, names that are looked up, connections, bytes of listeners, services. Each owner has a
// share, and operators have a reserve. One owner thus never locks out another, and all owners
// together never lock out the operators.
//
// A Bound is the pure rule, for counts that are read from records. A Pool counts what is held now.
// The package never waits: a full bound is refused at once, with the numbers.
package share

import (
	"fmt"
	"sync"

	"pando.run/pando"
)

// Bound is a limit with a share for each owner and a reserve for operators. The unit is the
// caller's: places, bytes, addresses.
type Bound struct {
	Total   int64 // of all owners and operators together
	Each    int64 // of one owner
	Reserve int64 // the part of Total that operators alone may take
}

// Use is what is taken of a bound.
type Use struct {
	All    int64 // by owners and operators
	Owners int64 // by owners
	Own    int64 // by the owner that asks; operators have no share, so theirs does not count
}

// FullError is the refusal of a full bound. It is an ErrRefused.
type FullError struct {
	Bound Bound
	Use   Use
	More  int64 // asked for
	Share bool  // the owner's share is used up; else the whole is
}

// Error returns the numbers. The caller names the thing and the owner.
func (e *FullError) Error() string {
	if e.Share {
		return fmt.Sprintf("%v: %d of the %d that one owner may have are in use",
			pando.ErrRefused, e.Use.Own, e.Bound.Each)
	}
	return fmt.Sprintf("%v: %d of %d are in use, and %d of them are kept for operators",
		pando.ErrRefused, e.Use.All, e.Bound.Total, e.Bound.Reserve)
}

// Unwrap returns pando.ErrRefused.
func (e *FullError) Unwrap() error { return pando.ErrRefused }

// Admits returns nil if an owner may take n more, else a *FullError.
func (b Bound) Admits(u Use, n int64) error {
	switch {
	case n > b.Each-u.Own:
		return &FullError{Bound: b, Use: u, More: n, Share: true}
	case n > b.Total-b.Reserve-u.Owners, n > b.Total-u.All:
		return &FullError{Bound: b, Use: u, More: n}
	}
	return nil
}

// AdmitsOperator returns nil if an operator may take n more, else a *FullError. Operators have no
// share: they may take everything that is free.
func (b Bound) AdmitsOperator(u Use, n int64) error {
	if n > b.Total-u.All {
		return &FullError{Bound: b, Use: u, More: n}
	}
	return nil
}

// Pool counts what the owners hold of a bound now. Make it with New. Its methods may be called at
// the same time.
type Pool[O comparable] struct {
	bound Bound

	mu     sync.Mutex
	all    int64
	owners int64
	of     map[O]int64 // entries of 0 are deleted, so holders bound the map
}

// New returns a pool of which nothing is held.
func New[O comparable](b Bound) *Pool[O] {
	return &Pool[O]{bound: b, of: map[O]int64{}}
}

// Bound returns the limit of the pool.
func (p *Pool[O]) Bound() Bound { return p.bound }

// Use returns what is held, with the part of one owner.
func (p *Pool[O]) Use(o O) Use {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.use(o)
}

func (p *Pool[O]) use(o O) Use { return Use{All: p.all, Owners: p.owners, Own: p.of[o]} }

// Take takes n for an owner, or returns a *FullError. Close of the hold gives it back.
func (p *Pool[O]) Take(o O, n int64) (*Hold[O], error) {
	h := &Hold[O]{pool: p, owner: o}
	return h, h.Grow(n)
}

// TakeAsOperator takes n for an operator, or returns a *FullError.
func (p *Pool[O]) TakeAsOperator(n int64) (*Hold[O], error) {
	h := &Hold[O]{pool: p, operator: true}
	return h, h.Grow(n)
}

// Hold is what one holder has of a pool.
type Hold[O comparable] struct {
	pool     *Pool[O]
	owner    O
	operator bool
	n        int64
	closed   bool
}

// Grow takes n more, or nothing and returns a *FullError. A closed hold takes nothing.
func (h *Hold[O]) Grow(n int64) error {
	p := h.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if h.closed || n <= 0 {
		return nil
	}
	u, admits := p.use(h.owner), p.bound.Admits
	if h.operator {
		admits = p.bound.AdmitsOperator
	}
	if err := admits(u, n); err != nil {
		return err
	}
	h.add(n)
	return nil
}

// Shrink gives n back, at most what the hold has.
func (h *Hold[O]) Shrink(n int64) {
	h.pool.mu.Lock()
	defer h.pool.mu.Unlock()
	h.add(-min(max(n, 0), h.n))
}

// Close gives everything back. Further calls do nothing.
func (h *Hold[O]) Close() {
	h.pool.mu.Lock()
	defer h.pool.mu.Unlock()
	h.add(-h.n)
	h.closed = true
}

// add changes the counts. The caller holds the lock of the pool.
func (h *Hold[O]) add(n int64) {
	p := h.pool
	h.n += n
	p.all += n
	if h.operator {
		return
	}
	p.owners += n
	if p.of[h.owner] += n; p.of[h.owner] == 0 {
		delete(p.of, h.owner)
	}
}
