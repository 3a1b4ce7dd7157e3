package agent

import (
	"slices"

	"pando.run/pando"
	"pando.run/pando/agent/steer"
)

// tables builds the steering of this host from its records and its runners.
type tables struct{ a *Agent }

var _ steer.Source = tables{}

// Table implements steer.Source. The table sends flows to the instances on this host.
func (t tables) Table(s pando.ServiceKey) (pando.SteeringTable, steer.Action) {
	a := t.a
	a.mu.Lock()
	defer a.mu.Unlock()
	svc, ok := a.world.Services[s]
	switch {
	case a.adoption.keeps(s), !ok && a.world.Frozen(s) != nil:
		return pando.SteeringTable{Service: s}, steer.Keep
	case !ok:
		return pando.SteeringTable{Service: s}, steer.Withdraw
	}
	all, ok := a.world.Endpoints[s]
	if !ok || !svc.V.VIP4.IsValid() {
		return pando.SteeringTable{Service: s}, steer.Keep
	}
	out := pando.SteeringTable{
		Service: s, VIP4: svc.V.VIP4, VIP6: svc.V.VIP6, Ports: all.V.Ports,
		Endpoints: make([]pando.Endpoint, 0, len(a.crews.of[s])),
	}
	for _, r := range a.crews.of[s] {
		if e, ok := a.current(r).endpoint(); ok {
			out.Endpoints = append(out.Endpoints, e)
		}
	}
	via := t.elsewhere(s, out.Endpoints)
	out.Via4, out.Via6 = via.Address, via.Address6
	return out, steer.Publish
}

// unattached reports whether an instance of a service runs here whose record, or whose service,
// cannot be read. Only the table in force has its endpoint. The caller holds the lock.
func (t tables) unattached(s pando.ServiceKey) bool {
	a := t.a
	_, known := a.world.Services[s]
	for id, b := range a.found {
		if b.Service() == s && (!known || a.world.Conceals(id)) {
			return true
		}
	}
	return false
}

// elsewhere returns the host that serves a service while no endpoint here takes new flows, or the
// zero Host. The caller holds the lock.
func (t tables) elsewhere(s pando.ServiceKey, here []pando.Endpoint) (via pando.Host) {
	w := t.a.world
	takesFlows := func(e pando.Endpoint) bool { return e.Weight > 0 }
	if len(w.Hosts) < 2 || slices.ContainsFunc(here, takesFlows) {
		return via
	}
	e := w.Endpoints[s].V
	for n, name := range e.Hosts {
		h, alive := w.Hosts[name]
		if !alive || name == t.a.Host.Name || !e.TakesFlows(n) || !t.vouched(h.V) {
			continue
		}
		if h.V.Name == w.Services[s].V.Home || via.Name == "" {
			via = h.V
		}
	}
	return via
}

// Neighbours implements steer.Source.
func (t tables) Neighbours() (others []pando.Host) {
	t.a.mu.Lock()
	defer t.a.mu.Unlock()
	for _, h := range t.a.world.Hosts {
		if h.V.Name != t.a.Host.Name && t.vouched(h.V) {
			others = append(others, h.V)
		}
	}
	return others
}

// vouched reports whether the addresses in a host's record match its membership. Packets go to the
// addresses in the record. The server writes the record of its own host itself. The caller holds
// the lock.
func (t tables) vouched(h pando.Host) bool {
	m, ok := t.a.world.Members[h.Name]
	if !ok || m.V.Server {
		return true
	}
	err := m.V.Vouches(h)
	if err != nil {
		t.a.Log.Error("no packets go to a host", "host", h.Name, "error", err)
	}
	return err == nil
}
