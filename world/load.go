package world

import (
	"maps"
	"math"
	"net/netip"
	"slices"

	"pando.run/pando"
)

// Load is the sum of the limits of some instances.
type Load struct {
	Instances   int
	MemoryBytes int64
	PIDs        int64
	CPUs        float64
}

// ledgers are the sums and sets that a decision asks for. They follow every change of the world, so
// that no decision scans the services or the instances of the cluster.
type ledgers struct {
	loads     map[pando.HostName]weight
	weights   map[pando.InstanceID]weight // as counted in loads
	taken     map[netip.Addr]pando.ServiceKey
	homes     map[pando.HostName]map[pando.ServiceKey]bool
	onTheWay  map[pando.InstanceID]reserved // also counted in loads
	unsettled map[pando.ServiceKey]bool     // those that wait, roll or lack instances
	resting   []rested                      // of removed services, oldest first; at most restingMax
}

func newLedgers() ledgers {
	return ledgers{
		loads: map[pando.HostName]weight{}, weights: map[pando.InstanceID]weight{},
		taken: map[netip.Addr]pando.ServiceKey{}, unsettled: map[pando.ServiceKey]bool{},
		homes:    map[pando.HostName]map[pando.ServiceKey]bool{},
		onTheWay: map[pando.InstanceID]reserved{},
	}
}

// weight is a load in whole numbers, so that sums and differences lose nothing.
type weight struct {
	instances          int
	memory, pids, cpus int64 // cpus in millionths
}

func weightOf(r pando.Resources) weight {
	return weight{1, r.MemoryBytes, r.PIDs, int64(math.Round(r.CPUs * 1e6))}
}

func (a weight) plus(b weight) weight {
	return weight{
		a.instances + b.instances, a.memory + b.memory, a.pids + b.pids, a.cpus + b.cpus,
	}
}

func (a weight) minus(b weight) weight {
	return weight{
		a.instances - b.instances, a.memory - b.memory, a.pids - b.pids, a.cpus - b.cpus,
	}
}

// weigh adds an instance to the load of its host, or counts it by a new spec.
func (w *World) weigh(i pando.Instance) {
	w.release(i.ID) // it has arrived
	spec, _ := w.SpecOf(i.Service, i.Revision)
	now := weightOf(spec.Resources)
	w.loads[i.Host] = w.loads[i.Host].minus(w.weights[i.ID]).plus(now)
	w.weights[i.ID] = now
}

// lift takes an instance out of the load of its host.
func (l *ledgers) lift(i pando.Instance) {
	left := l.loads[i.Host].minus(l.weights[i.ID])
	delete(l.weights, i.ID)
	if l.loads[i.Host] = left; left == (weight{}) {
		delete(l.loads, i.Host)
	}
}

// reweigh counts the instances of a revision by its spec, which may arrive after them.
func (w *World) reweigh(s pando.ServiceKey, revision int) {
	spec, _ := w.SpecOf(s, revision)
	want := weightOf(spec.Resources)
	for _, i := range w.ofService[s] {
		if i.Revision == revision && w.weights[i.ID] != want {
			w.weigh(i)
		}
	}
}

// LoadOn returns the sum of the limits of a host's instances. It costs no scan.
func (g *ledgers) LoadOn(h pando.HostName) Load {
	l := g.loads[h]
	return Load{l.instances, l.memory, l.pids, float64(l.cpus) / 1e6}
}

// settle moves a service between the indexes that its record decides about.
func (l *ledgers) settle(was, now pando.Service) {
	for _, a := range []netip.Addr{was.VIP4, was.VIP6} {
		if l.taken[a] == was.ServiceKey {
			delete(l.taken, a)
		}
	}
	if of := l.homes[was.Home]; of != nil {
		if delete(of, was.ServiceKey); len(of) == 0 {
			delete(l.homes, was.Home)
		}
	}
	delete(l.unsettled, was.ServiceKey)
	if now.Name == "" {
		l.retire(was)
		return
	}
	for _, a := range []netip.Addr{now.VIP4, now.VIP6} {
		if a.IsValid() {
			l.taken[a] = now.ServiceKey
		}
	}
	if l.homes[now.Home] == nil {
		l.homes[now.Home] = map[pando.ServiceKey]bool{}
	}
	l.homes[now.Home][now.ServiceKey] = true
	if now.Phase != pando.ServiceServing && now.Phase != pando.ServiceCompleted {
		l.unsettled[now.ServiceKey] = true
	}
}

// HasVIP returns the service with a VIP.
func (l *ledgers) HasVIP(a netip.Addr) (s pando.ServiceKey, ok bool) {
	s, ok = l.taken[a]
	return s, ok
}

// Concerned returns the services in order that a change of a host's record may concern: those with
// instances, a home or a copy of their state there, and those that may wait for a host.
func (w *World) Concerned(h pando.HostName) []pando.ServiceKey {
	all := maps.Clone(w.unsettled)
	maps.Copy(all, w.homes[h])
	for _, i := range w.onHost[h] {
		all[i.Service] = true
	}
	for s, k := range w.Keepers {
		if k.V.Holds(h) || len(k.V.Copies)+len(k.V.Joining) < k.V.Want {
			all[s] = true
		}
	}
	return slices.SortedFunc(maps.Keys(all), pando.ServiceKey.Compare)
}
