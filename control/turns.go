package control

import (
	"sync"

	"pando.run/pando"
)

// turns give each service its turn: one decision at a time is made and written about it. Decisions
// about different services are written beside each other.
type turns struct {
	mu  sync.Mutex
	all map[pando.ServiceKey]*turn
}

// turn is held by the goroutine that has filled taken.
type turn struct {
	taken   chan struct{}
	callers int // that wait for it or hold it
}

// of returns the turn of a service. The caller calls leave when it holds the turn no longer, or
// waits for it no longer.
func (t *turns) of(s pando.ServiceKey) (taken chan struct{}, leave func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all == nil {
		t.all = map[pando.ServiceKey]*turn{}
	}
	mine := t.all[s]
	if mine == nil {
		mine = &turn{taken: make(chan struct{}, 1)}
		t.all[s] = mine
	}
	mine.callers++
	return mine.taken, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if mine.callers--; mine.callers == 0 {
			delete(t.all, s)
		}
	}
}
