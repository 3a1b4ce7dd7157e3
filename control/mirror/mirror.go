// Package mirror keeps a process's copy of the store. The loop decides from it, and the requests of
// operators read it and write through it. So a process finds its own writes at once.
//
// It decides nothing. It only marks the services that a change concerns.
package mirror

import (
	"log/slog"
	"slices"
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

// New returns a copy of a store. host names this host in the audit.
func New(
	r pando.Registry, clock pando.Clock, ids pando.IDs, log *slog.Logger, host string,
) *Mirror {
	v := &Mirror{
		Clock: clock, IDs: ids, Log: log, Name: host,
		World: world.New(), Changed: make(chan struct{}), Nudge: make(chan struct{}, 1),
		dirty: map[pando.ServiceKey]bool{}, Wakes: map[pando.ServiceKey]time.Time{},
		Left: map[pando.HostName]time.Time{}, unwritten: map[pando.ServiceKey]unwritten{},
		reserved: map[pando.ServiceKey]pando.Txn{},
		Figures:  Figures{Decisions: map[pando.ServiceKey]map[pando.DecisionKind]uint64{}},
	}
	v.Registry = Auditing{r, v}
	return v
}

// Take follows a change of the store. After a reset, the batch is the whole store.
func (m *Mirror) Take(b pando.Batch, reset bool) {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	if reset {
		m.World = m.World.Next()
	}
	m.World.At(m.Clock.Now())
	// This control has already considered its own writes.
	news := slices.DeleteFunc(slices.Clone(b.Changes), m.World.Knows)
	if err := m.World.Apply(b.Changes, b.Revision); err != nil {
		m.Log.Error("a record cannot be read: its service is frozen", "error", err)
	}
	for _, r := range news {
		if !reset {
			m.touch(r.Key)
		}
		m.comeAndGo(r)
	}
	m.Figures.count(m.World, b, reset)
	for _, heard := range m.Listeners {
		heard(m.World, b, reset)
	}
	if reset {
		m.MarkAll()
		for _, t := range m.reserved {
			m.World.Reserve(t)
		}
	}
	close(m.Changed)
	m.Changed = make(chan struct{})
	m.Wake()
}

// touch marks the services that a change concerns: its own, those of a changed tenant, or those that the change of a host's
// record may concern. The first and the last host concern all.
func (m *Mirror) touch(k pando.Key) {
	if k.Kind() == pando.KindTenant {
		m.touchTenant(pando.Tenant(k[len(pando.TenantKey("")):]))
		return
	}
	if k.Kind() == pando.KindMember { // a drain begins or ends, or its grants change
		for _, s := range m.World.Concerned(pando.HostName(k[len(pando.MemberKey("")):])) {
			m.mark(s)
		}
		return
	}
	if h, ok := k.Host(); ok {
		if len(m.World.Hosts) < 2 {
			m.MarkAll()
			return
		}
		for _, s := range m.World.Concerned(h) {
			m.mark(s)
		}
		return
	}
	if s, ok := k.Service(); ok {
		m.mark(s)
	}
}

// touchTenant marks the services of a tenant: its quota or its VIPs changed.
func (m *Mirror) touchTenant(t pando.Tenant) {
	for _, s := range m.World.Names() {
		if s.Tenant == t {
			m.mark(s)
		}
	}
}

// comeAndGo records since when a member's host is away. The caller holds the lock.
func (m *Mirror) comeAndGo(r pando.Record) {
	h, host := r.Key.Host()
	if _, member := m.World.Members[h]; !host || !member {
		return
	}
	if r.Value == nil {
		m.Left[h] = m.Clock.Now()
	} else {
		delete(m.Left, h)
	}
}

// NewestSpec returns the spec that an operator last deployed for a service.
func (m *Mirror) NewestSpec(s pando.ServiceKey) (pando.Spec, bool) {
	m.Mu.RLock()
	defer m.Mu.RUnlock()
	return m.World.SpecOf(s, m.World.Services[s].V.Target)
}
