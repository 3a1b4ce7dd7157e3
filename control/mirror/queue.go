package mirror

import (
	"slices"
	"time"

	"pando.run/pando"
)

// mark appends a service to the queue of decisions. The caller holds the lock.
func (m *Mirror) mark(s pando.ServiceKey) {
	if !m.dirty[s] {
		m.dirty[s] = true
		m.queue = append(m.queue, s)
	}
}

// MarkAll marks every service. The caller holds the lock.
func (m *Mirror) MarkAll() {
	for _, s := range m.World.Names() {
		m.mark(s)
	}
}

// Wake wakes the loop.
func (m *Mirror) Wake() {
	select {
	case m.Nudge <- struct{}{}:
	default:
	}
}

// MarkDue marks the services with a wake time in the past. It returns the time until the next one.
func (m *Mirror) MarkDue() (next time.Duration) {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	now := m.Clock.Now()
	var due []pando.ServiceKey
	next = time.Minute
	for s, at := range m.Wakes {
		if wait := at.Sub(now); wait > 0 {
			next = min(next, max(time.Millisecond, wait))
			continue
		}
		delete(m.Wakes, s)
		due = append(due, s)
	}
	slices.SortFunc(due, pando.ServiceKey.Compare)
	for _, s := range due {
		m.mark(s)
	}
	return next
}

// IsDirty reports whether a service needs a decision.
func (m *Mirror) IsDirty() bool {
	m.Mu.RLock()
	defer m.Mu.RUnlock()
	return len(m.queue) > 0
}

// Next takes a service from the queue of decisions.
func (m *Mirror) Next() (pando.ServiceKey, bool) {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	if len(m.queue) == 0 {
		return pando.ServiceKey{}, false
	}
	s := m.queue[0]
	m.queue = m.queue[1:]
	delete(m.dirty, s)
	return s, true
}

// Later postpones the next look at a service after a decision was written.
func (m *Mirror) Later(s pando.ServiceKey) {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	if m.dirty[s] {
		delete(m.dirty, s)
		m.queue = slices.DeleteFunc(m.queue, func(o pando.ServiceKey) bool { return o == s })
	}
	if at, next := m.Wakes[s], m.Clock.Now().Add(laterWait); at.IsZero() || next.Before(at) {
		m.Wakes[s] = next
	}
}

// Reserve takes the room of a decision that is about to be written. The caller holds the lock.
func (m *Mirror) Reserve(s pando.ServiceKey, t pando.Txn) {
	m.reserved[s] = t
	m.World.Reserve(t)
}

// Free gives back the room of the last decision about a service, if it is not in the world. The
// caller holds the lock.
func (m *Mirror) Free(s pando.ServiceKey) {
	m.World.Release(m.reserved[s])
	delete(m.reserved, s)
}

// laterWait delays the work that follows from an answer, so that it does not compete with the
// answer and the start for the processor. A decision looks at all of its service, so the delay
// holds back no further asks.
const laterWait = 5 * time.Millisecond
