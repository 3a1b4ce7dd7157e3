package mirror

import (
	"log/slog"
	"slices"
	"time"

	"pando.run/pando"
	"pando.run/pando/world"
)

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
		m.noteAbsence(r)
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

// noteAbsence records since when a member's host is away. The caller holds the lock.
func (m *Mirror) noteAbsence(r pando.Record) {
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
