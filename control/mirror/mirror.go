// Package mirror keeps a process's copy of the store. The loop decides from it, and the requests of
// operators read it and write through it. So a process finds its own writes at once.
//
// It decides nothing. It only marks the services that a change concerns.
package mirror

import (
	"log/slog"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/world"
)

// Mirror is this process's copy of the store, with the services that need a decision. Mu guards all
// but the settings.
type Mirror struct {
	Registry pando.Registry // its writes carry the deeds of their requests
	Clock    pando.Clock
	IDs      pando.IDs
	Log      *slog.Logger
	Name     string // of this host, in the audit

	Mu      sync.RWMutex
	World   *world.World
	Changed chan struct{}                  // closed and replaced at every change of the world
	Left    map[pando.HostName]time.Time   // since when a member is away
	Wakes   map[pando.ServiceKey]time.Time // when a service needs the next decision
	Nudge   chan struct{}                  // wakes the loop
	Figures Figures
	// Listeners follow each change of the world, with the lock held.
	Listeners []func(w *world.World, b pando.Batch, reset bool)

	queue []pando.ServiceKey        // services that need a decision
	dirty map[pando.ServiceKey]bool // the members of queue
	// unwritten counts the decisions about a service that this process failed to write.
	unwritten map[pando.ServiceKey]unwritten
	// reserved are the decisions on their way to the store, and those without an answer of it.
	reserved map[pando.ServiceKey]pando.Txn
	full     time.Time // since when the store is full, or zero
}

// NewestSpec returns the spec that an operator last deployed for a service.
func (m *Mirror) NewestSpec(s pando.ServiceKey) (pando.Spec, bool) {
	m.Mu.RLock()
	defer m.Mu.RUnlock()
	return m.World.SpecOf(s, m.World.Services[s].V.Target)
}

// unwritten is a run of failed writes without a success.
type unwritten struct {
	since time.Time
	times int
	last  error
}
