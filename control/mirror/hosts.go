package mirror

import (
	"fmt"
	"maps"
	"slices"

	"pando.run/pando"
	"pando.run/pando/world"
)

// Hosts returns the hosts with a lease.
func (m *Mirror) Hosts() []pando.Host {
	m.Mu.RLock()
	defer m.Mu.RUnlock()
	out := []pando.Host{}
	for _, name := range slices.Sorted(maps.Keys(m.World.Hosts)) {
		out = append(out, m.World.Hosts[name].V)
	}
	return out
}

// Present returns a host with a lease.
func (m *Mirror) Present(h pando.HostName) (pando.Host, error) {
	m.Mu.RLock()
	defer m.Mu.RUnlock()
	if v, ok := m.World.Hosts[h]; ok {
		return v.V, nil
	}
	return pando.Host{}, fmt.Errorf("%w: host %s has no lease; `pando hosts` shows it",
		pando.ErrUnreachable, h)
}

// HostOf returns the host of an instance of a service. A caller that may see the service may not see
// those of others, so an instance of another one is not found.
func (m *Mirror) HostOf(s pando.ServiceKey, i pando.InstanceID) (pando.Host, error) {
	m.Mu.RLock()
	defer m.Mu.RUnlock()
	v, ok := m.World.Instances[i]
	if !ok || v.V.Service != s {
		return pando.Host{}, fmt.Errorf("instance %s: %w", i, pando.ErrNotFound)
	}
	if h, ok := m.World.Hosts[v.V.Host]; ok {
		return h.V, nil
	}
	return pando.Host{}, fmt.Errorf("%w: host %s of instance %s has no lease",
		pando.ErrUnreachable, v.V.Host, i)
}

// StateHost returns the host that has the objects of a service's main head.
func (m *Mirror) StateHost(s pando.ServiceKey) (pando.Host, error) {
	m.Mu.RLock()
	defer m.Mu.RUnlock()
	head, ok := m.World.Heads[s]
	if !ok {
		return pando.Host{}, fmt.Errorf("state of %s: %w: nothing has been pushed yet",
			s, pando.ErrNotFound)
	}
	h, ok := m.World.Hosts[head.V.Host]
	if !ok {
		return pando.Host{}, fmt.Errorf("%w: host %s, which has the state of %s, has no lease",
			pando.ErrUnreachable, head.V.Host, s)
	}
	return h.V, nil
}

// OnFrozenHost returns an error if the home or an instance of a service is on a frozen host, which
// follows no decision. The caller holds the lock.
func (m *Mirror) OnFrozenHost(s pando.ServiceKey) error {
	frozen := func(h pando.HostName) bool { return m.World.Hosts[h].V.Frozen != "" }
	h := m.World.Services[s].V.Home
	if !frozen(h) {
		var found bool
		if h, found = world.FindHost(m.World, s, frozen); !found {
			return nil
		}
	}
	return fmt.Errorf("%w: host %s keeps what it has: %s", pando.ErrFrozen, h,
		m.World.Hosts[h].V.Frozen)
}
