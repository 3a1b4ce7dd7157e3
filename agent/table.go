package agent

import (
	"maps"
	"slices"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/steer"
	"pando.run/pando/world"
)

// tables builds the steering of this host from its records and its runners.
type tables struct{ a *Agent }

var _ steer.Source = tables{}

// Table implements steer.Source. The table sends flows to the instances on this host and on others.
func (t tables) Table(s pando.ServiceKey) (pando.SteeringTable, steer.Action) {
	a := t.a
	a.records.Lock()
	defer a.records.Unlock()
	if isMeasured(a.records.World.Endpoints[s].V) {
		a.meter.Want(s)
	}
	svc, ok := a.records.World.Services[s]
	switch {
	case a.adoption.keeps(t.a.records.World, s), !ok && a.records.World.Frozen(s) != nil:
		return pando.SteeringTable{Service: s}, steer.Keep
	case !ok:
		return pando.SteeringTable{Service: s}, steer.Withdraw
	}
	all, ok := a.records.World.Endpoints[s]
	if !ok || !svc.V.VIP4.IsValid() {
		return pando.SteeringTable{Service: s}, steer.Keep
	}
	out := pando.SteeringTable{
		Service: s, VIP4: svc.V.VIP4, VIP6: svc.V.VIP6, Ports: all.V.Ports,
		By:        all.V.Balance.By,
		At:        all.V.Balance.At,
		Names:     a.crews.Reachable(a.records.World, all.V),
		Endpoints: make([]pando.Endpoint, 0, len(a.crews.Of[s])),
	}
	for _, r := range a.crews.Of[s] {
		if e, ok := r.StatusIn(a.records.World).Endpoint(); ok && !a.departures.HasLeft(a.records.World, all.V, r) {
			out.Endpoints = append(out.Endpoints, e)
		}
	}
	coming := a.arrivals.Endpoints(a.records.World, s)
	out.Endpoints = append(out.Endpoints, coming...)
	if a.config.Host.Tunnel && isSpread(svc.V, all.V) {
		find := a.presence.LeavingOut(a.records.World, all.V, out.Endpoints, t.find)
		remote := slices.DeleteFunc(steer.Remotes(all.V, a.config.Host.Name, find),
			func(r pando.Endpoint) bool {
				return slices.ContainsFunc(coming,
					func(e pando.Endpoint) bool { return e.Instance == r.Instance })
			})
		out.Endpoints = steer.Prefer(out.Endpoints, remote)
	}
	if t := svc.V.Trial; t != nil && svc.V.Soaking() && steer.Share(out.Endpoints, svc.V.Current,
		t.Share) {
		// A client stays at its instance. Other policies count instances, or prefer one that fails fast.
		if out.By != pando.ByClient {
			out.By = pando.ByHash
		}
	}
	via := t.elsewhere(t.a.records.World, s, out.Endpoints)
	out.Via4, out.Via6 = via.Address, via.Address6
	out.Asleep = sleeps(svc.V, all.V, a.config.Clock.Now())
	return out, steer.Publish
}

// sleeps reports whether traffic may start the first instance of a service: no host has one that
// takes flows, and no operator has pinned their number.
func sleeps(s pando.Service, e pando.Endpoints, now time.Time) bool {
	return e.Scale.FromZero() && !s.Removing && !s.Pin.Holds(now) &&
		!slices.ContainsFunc(e.Seats, func(t pando.Seat) bool { return t.Phase.TakesFlows() })
}

// isSpread reports whether flows must find instances on more than one host. The others go to the
// home of their service by a route, which needs no tunnel and no memory of flows on the way.
func isSpread(s pando.Service, e pando.Endpoints) bool { return s.Home == "" || len(e.Hosts) > 1 }

// find returns a host that packets may go to, and whether it is here.
func (t tables) find(name pando.HostName) (pando.Host, bool) {
	return t.a.records.FindHost(t.a.records.World, name)
}

// elsewhere returns the host that packets without a flow here pass to, or the zero Host. It is a
// host that takes new flows, while no endpoint here does. If no host takes new flows, it is a host
// that still has flows of the service: this host forwarded their packets by a route and has no
// memory of them. A host that has such flows itself passes none on, so that no packet goes to and
// fro.
func (t tables) elsewhere(w *world.World, s pando.ServiceKey, here []pando.Endpoint) (via pando.Host) {
	takesFlows := func(e pando.Endpoint) bool { return e.Weight > 0 }
	if slices.ContainsFunc(here, takesFlows) {
		return via
	}
	e, home := w.Endpoints[s].V, w.Services[s].V.Home
	takers, keepers := e.Takers(), e.Keepers()
	own, isHere := slices.BinarySearch(e.Hosts, t.a.config.Host.Name)
	leads := !isHere || !keepers[own]
	best := 0
	for n, name := range e.Hosts {
		h, alive := t.a.records.FindHost(w, name)
		if name == t.a.config.Host.Name || h.Name == "" || !keepers[n] {
			continue
		}
		rank := 1 // its agent is away, and its programs steer on
		switch {
		case alive && takers[n]:
			rank = 3
		case !leads:
			continue
		case alive:
			rank = 2
		}
		if rank > best || rank == best && name == home {
			best, via = rank, h
		}
	}
	return via
}

// Neighbours implements steer.Source. It includes members that are away: their instances may still
// have connections.
func (t tables) Neighbours() (others []pando.Host) {
	t.a.records.Lock()
	defer t.a.records.Unlock()
	w := t.a.records.World
	names := map[pando.HostName]bool{}
	for name := range w.Hosts {
		names[name] = true
	}
	for name := range w.Members {
		names[name] = true
	}
	delete(names, t.a.config.Host.Name)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if h, _ := t.a.records.FindHost(w, name); h.Name != "" {
			others = append(others, h)
		}
	}
	return others
}

// isMeasured reports whether the flows or the size of a service follow measurements.
func isMeasured(e pando.Endpoints) bool {
	return e.Balance.Scored() || e.Scale.By == pando.ByScores
}
