package steer

import (
	"cmp"
	"slices"

	"pando.run/pando"
)

// Remotes returns the endpoints of a service on other hosts, by instance. find returns a host and
// whether its agent is here. A zero Host, or one without a tunnel, is left out.
//
// An endpoint keeps its flows until its seat is gone. On a host that is away it gets no new ones,
// because nothing reports whether it lives.
func Remotes(
	e pando.Endpoints, own pando.HostName, find func(pando.HostName) (pando.Host, bool),
) (out []pando.Endpoint) {
	hosts, here := make([]pando.Host, len(e.Hosts)), make([]bool, len(e.Hosts))
	for n, name := range e.Hosts {
		if name != own {
			hosts[n], here[n] = find(name)
		}
	}
	for _, s := range e.Seats {
		h := hosts[s.Host]
		if !h.Tunnel || !h.Address.IsValid() || s.Phase != pando.PhaseDraining && !s.Phase.TakesFlows() {
			continue
		}
		r := pando.Endpoint{
			Instance: s.Instance, Revision: s.Revision, Remote: h.Address, Silent: !here[s.Host],
		}
		if s.Phase.TakesFlows() && here[s.Host] {
			r.Weight = s.Weight
		}
		// An agent that counts no such sockets would end them in a drain. Instances of another
		// revision may have other ports.
		if e.Balance.At == pando.AtConnect && h.Straight && s.Revision == e.Service.Target {
			r.Own4, r.Own6, _ = s.Addresses(h.Slot)
		}
		out = append(out, r)
	}
	slices.SortFunc(out, func(x, y pando.Endpoint) int { return cmp.Compare(x.Instance, y.Instance) })
	return out
}

// Prefer raises the weights of endpoints on this host by a quarter while others take flows too: a
// flow to another host passes two hosts. It returns local and remote endpoints together.
func Prefer(local, remote []pando.Endpoint) []pando.Endpoint {
	takes := func(e pando.Endpoint) bool { return e.Weight > 0 }
	if slices.ContainsFunc(remote, takes) {
		for n := range local {
			local[n].Weight += (local[n].Weight + 3) / 4
			local[n].Soon += (local[n].Soon + 3) / 4
		}
	}
	return append(local, remote...)
}
