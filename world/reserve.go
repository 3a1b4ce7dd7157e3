package world

import (
	"net/netip"

	"pando.run/pando"
)

// reserved is the room of an instance that a commit on its way places.
type reserved struct {
	service pando.ServiceKey
	host    pando.HostName
	weight
}

// Reserve counts the placements and the addresses of a commit that is on its way. Without it, two
// services that are decided beside each other could both take the last room of a host, or the same
// address.
func (w *World) Reserve(t pando.Txn) {
	for _, v := range t.Put {
		switch v := v.(type) {
		case pando.Instance:
			if _, known := w.Instances[v.ID]; known {
				continue // a later step of an instance that is counted
			}
			spec, _ := w.SpecOf(v.Service, v.Revision)
			r := reserved{v.Service, v.Host, weightOf(spec.Resources)}
			w.release(v.ID)
			w.onTheWay[v.ID] = r
			w.load(r.service.Tenant, r.host, r.weight)
		case pando.Service:
			for _, a := range []netip.Addr{v.VIP4, v.VIP6} {
				if _, taken := w.taken[a]; a.IsValid() && !taken {
					w.taken[a] = v.ServiceKey
				}
			}
		}
	}
}

// HasName reports whether an instance of any service has a name, or will have it after a commit on
// its way.
func (w *World) HasName(i pando.InstanceID) bool {
	_, known := w.Instances[i]
	_, coming := w.onTheWay[i]
	return known || coming
}

// Release ends a reservation, after the commit was applied or has failed.
func (w *World) Release(t pando.Txn) {
	for _, v := range t.Put {
		switch v := v.(type) {
		case pando.Instance:
			w.release(v.ID)
		case pando.Service:
			now := w.Services[v.ServiceKey].V
			if w.taken[v.VIP4] == v.ServiceKey && now.VIP4 != v.VIP4 {
				delete(w.taken, v.VIP4)
			}
			if w.taken[v.VIP6] == v.ServiceKey && now.VIP6 != v.VIP6 {
				delete(w.taken, v.VIP6)
			}
		}
	}
}

// HostsOf returns the hosts with an instance of a service, also one that a commit on its way
// places.
func (w *World) HostsOf(s pando.ServiceKey) map[pando.HostName]bool {
	out := map[pando.HostName]bool{}
	for n := range w.ofService[s] {
		out[w.ofService[s][n].Host] = true
	}
	for _, r := range w.onTheWay {
		if r.service == s {
			out[r.host] = true
		}
	}
	return out
}

func (l *ledgers) release(i pando.InstanceID) {
	r, ok := l.onTheWay[i]
	if !ok {
		return
	}
	delete(l.onTheWay, i)
	l.load(r.service.Tenant, r.host, weight{}.minus(r.weight))
}
