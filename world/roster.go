package world

import (
	"net/netip"
	"slices"

	"pando.run/pando"
)

// rosters list the instances of each service or of each host, oldest first. A query for one of them
// costs as much as its own instances, not as much as the cluster.
type rosters[K comparable] map[K][]pando.Instance

// of returns the instances under k. The caller owns the slice, which has room for more.
func (r rosters[K]) of(k K) []pando.Instance {
	if len(r[k]) == 0 {
		return nil
	}
	return append(make([]pando.Instance, 0, len(r[k])+spare), r[k]...)
}

// FindHost returns a host with an instance of a service for which want is true. It copies no
// instance.
func FindHost(
	w *World, s pando.ServiceKey, want func(pando.HostName) bool,
) (pando.HostName, bool) {
	var last pando.HostName
	for n := range w.ofService[s] {
		h := w.ofService[s][n].Host
		if n > 0 && h == last {
			continue
		}
		if want(h) {
			return h, true
		}
		last = h
	}
	return "", false
}

func (r rosters[K]) add(k K, i pando.Instance) {
	at, there := slices.BinarySearchFunc(r[k], i, byBirth)
	if there {
		r[k][at] = i
		return
	}
	r[k] = slices.Insert(r[k], at, i)
}

// drop removes an instance that add added.
func (r rosters[K]) drop(k K, i pando.Instance) {
	if at, there := slices.BinarySearchFunc(r[k], i, byBirth); there {
		r[k] = slices.Delete(r[k], at, at+1)
	}
	if len(r[k]) == 0 {
		delete(r, k)
	}
}

// enlist adds an instance to the indexes of Of and On.
func (w *World) enlist(v Versioned[pando.Instance]) {
	if was, ok := w.Instances[v.V.ID]; ok {
		if was.V.Service != v.V.Service || was.V.Host != v.V.Host || byBirth(was.V, v.V) != 0 {
			w.delist(was.V) // a claimed warm instance is born again
		}
	}
	w.Instances[v.V.ID] = v
	w.weigh(v.V)
	w.ofService.add(v.V.Service, v.V)
	w.onHost.add(v.V.Host, v.V)
}

// delist removes an instance, unless another record has taken its name meanwhile.
func (w *World) delist(i pando.Instance) {
	if w.Instances[i.ID].V.Key() != i.Key() {
		return
	}
	i = w.Instances[i.ID].V
	delete(w.Instances, i.ID)
	w.lift(i)
	w.ofService.drop(i.Service, i)
	w.onHost.drop(i.Host, i)
}

// Of returns the instances that a service has for its traffic, oldest first.
func (w *World) Of(s pando.ServiceKey) []pando.Instance {
	return slices.DeleteFunc(w.ofService.of(s), func(i pando.Instance) bool { return i.Run != nil })
}

// RunsOf returns the instances of the runs of a service, oldest first.
func RunsOf(w *World, s pando.ServiceKey) (out []pando.Instance) {
	for _, i := range w.ofService[s] {
		if i.Run != nil {
			out = append(out, i)
		}
	}
	return out
}

// On returns the instances of a host, oldest first.
func (w *World) On(h pando.HostName) []pando.Instance { return w.onHost.of(h) }

// CountOf returns the number of instances of a service.
func (w *World) CountOf(s pando.ServiceKey) int { return len(w.ofService[s]) }

// CountOn returns the number of instances of a host.
func (w *World) CountOn(h pando.HostName) int { return len(w.onHost[h]) }

// HasHostAt reports whether a member of the cluster has an address.
func (w *World) HasHostAt(at netip.Addr) bool {
	for _, m := range w.Members {
		if m.V.Address == at || m.V.Address6 == at {
			return true
		}
	}
	for _, h := range w.Hosts {
		if h.V.Address == at || h.V.Address6 == at {
			return true
		}
	}
	return false
}
