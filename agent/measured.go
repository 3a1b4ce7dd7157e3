package agent

import (
	"maps"
	"slices"

	"pando.run/pando"
	"pando.run/pando/agent/meter"
)

// measured is the meter's view of the agent.
type measured struct{ a *Agent }

var _ meter.Source = measured{}

// Service implements meter.Source.
func (m measured) Service(s pando.ServiceKey) (out meter.Service, wanted bool) {
	t, _ := tables(m).Table(s)
	a := m.a
	a.records.Lock()
	defer a.records.Unlock()
	e, ok := a.records.World.Endpoints[s]
	if !ok || !isMeasured(e.V) {
		return out, false
	}
	out = meter.Service{
		Key: s, Balance: e.V.Balance, Hosts: make(map[pando.InstanceID]pando.HostName, len(e.V.Seats)),
	}
	for _, p := range t.Endpoints {
		if p.Weight > 0 {
			out.Takers = append(out.Takers, p)
		}
	}
	for _, seat := range e.V.Seats {
		out.Hosts[seat.Instance] = e.V.HostOf(seat)
	}
	for _, r := range a.crews.Of[s] {
		if r.Shown.Runs && r.Shown.Instance.Phase != pando.PhaseWarm {
			out.Here = append(out.Here, meter.Local{Instance: r.ID, Box: r.Shown.Box,
				IfIndex: r.Shown.Link.IfIndex, Device: r.Shown.Link.Host})
			out.Hosts[r.ID] = a.config.Host.Name // its seat may be on its way
		}
	}
	for _, name := range e.V.Hosts {
		if h, here := a.records.FindHost(a.records.World, name); here && name != a.config.Host.Name {
			out.Others = append(out.Others, h)
		}
	}
	return out, true
}

// Ingress implements meter.Source.
func (m measured) Ingress() (place, hosts int) {
	m.a.records.Lock()
	defer m.a.records.Unlock()
	names := slices.Sorted(maps.Keys(m.a.records.World.Hosts))
	place, _ = slices.BinarySearch(names, m.a.config.Host.Name)
	return place, len(names)
}
