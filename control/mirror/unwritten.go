package mirror

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

// Failed counts a decision about a service that could not be written. The caller holds the lock.
func (m *Mirror) Failed(s pando.ServiceKey, err error) {
	u, ok := m.unwritten[s]
	if !ok {
		u.since = m.Clock.Now()
	}
	u.times, u.last = u.times+1, err
	m.unwritten[s] = u
}

// Written clears the failures, because the decision is in the store or there is none to write. The
// caller holds the lock.
func (m *Mirror) Written(s pando.ServiceKey) { delete(m.unwritten, s) }

// NoteOutcome records whether the store has room. While it is full, agents cannot record their steps.
func (m *Mirror) NoteOutcome(err error) {
	m.Figures.wrote(err)
	m.Mu.Lock()
	defer m.Mu.Unlock()
	switch {
	case err == nil:
		m.full = time.Time{}
	case errors.Is(err, pando.ErrStoreFull) && m.full.IsZero():
		m.full = m.Clock.Now()
	}
}

// UnwrittenProblem returns the problem that decisions or records cannot be written, or
// nil. The caller holds the lock.
func (m *Mirror) UnwrittenProblem(s pando.ServiceKey) *pando.Decision {
	u, failing := m.unwritten[s]
	if !failing && m.full.IsZero() {
		return nil
	}
	p := &pando.Decision{Service: s, Kind: pando.DecidedUnwritten, By: decide.Self}
	switch now := m.Clock.Now(); {
	case failing && now.Sub(u.since) >= unwrittenPatience:
		p.At = u.since
		p.Reason = fmt.Sprintf("the next decision cannot be written (%d tries since %s): %v",
			u.times, clock(u.since), u.last)
		p.Inputs = map[string]float64{"tries": float64(u.times)}
	case !m.full.IsZero() && now.Sub(m.full) >= unwrittenPatience:
		p.At = m.full
		p.Reason = fmt.Sprintf("since %s %v: hosts cannot write records, and this status may be old",
			clock(m.full), pando.ErrStoreFull)
	default:
		return nil
	}
	return p
}

func clock(t time.Time) string { return t.UTC().Format("15:04:05Z") }
