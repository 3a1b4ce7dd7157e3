package world

import (
	"maps"
	"math"
	"net/netip"
	"slices"
	"time"

	"pando.run/pando"
	"pando.run/pando/access"
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
	uses      map[pando.Tenant]weight // as loads, by the owner of the instances
	Seats     Seats
	published map[pando.Tenant][]time.Time // see Published
	weights   map[pando.InstanceID]weight  // as counted in loads
	services  map[pando.Tenant]int
	taken     map[netip.Addr]pando.ServiceKey
	homes     map[pando.HostName]map[pando.ServiceKey]bool
	hostNames []pando.HostName              // of those with a lease, in order
	onTheWay  map[pando.InstanceID]reserved // also counted in loads
	unsettled map[pando.ServiceKey]bool     // those that wait, roll or lack instances
	rests
}

func newLedgers() ledgers {
	return ledgers{
		loads: map[pando.HostName]weight{}, uses: map[pando.Tenant]weight{},
		Seats:    Seats{},
		services: map[pando.Tenant]int{}, published: map[pando.Tenant][]time.Time{},
		weights: map[pando.InstanceID]weight{},
		taken:   map[netip.Addr]pando.ServiceKey{}, unsettled: map[pando.ServiceKey]bool{},
		homes:    map[pando.HostName]map[pando.ServiceKey]bool{},
		onTheWay: map[pando.InstanceID]reserved{}, rests: newRests(),
	}
}

// Seats are the instances of each tenant on each host, also of those that a commit on its way places.
type Seats map[seat]int

// Of returns the number of a tenant's instances on a host. It costs no scan.
func (s Seats) Of(t pando.Tenant, h pando.HostName) int { return s[seat{t, h}] }

// seat is a tenant on a host.
type seat struct {
	tenant pando.Tenant
	host   pando.HostName
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
	w.load(i.Service.Tenant, i.Host, now.minus(w.weights[i.ID]))
	w.weights[i.ID] = now
}

// lift takes an instance out of the load of its host.
func (l *ledgers) lift(i pando.Instance) {
	l.load(i.Service.Tenant, i.Host, weight{}.minus(l.weights[i.ID]))
	delete(l.weights, i.ID)
}

// load adds to the load of a host and to the use of a tenant.
func (l *ledgers) load(t pando.Tenant, h pando.HostName, more weight) {
	if l.loads[h] = l.loads[h].plus(more); l.loads[h] == (weight{}) {
		delete(l.loads, h)
	}
	at := seat{t, h}
	if l.Seats[at] += more.instances; l.Seats[at] == 0 {
		delete(l.Seats, at)
	}
	if l.uses[t] = l.uses[t].plus(more); l.uses[t] == (weight{}) {
		delete(l.uses, t)
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
	return g.loads[h].load()
}

// UseOf returns the sum of the limits of a tenant's instances, also of those that a commit on its
// way places. It costs no scan.
func (g *ledgers) UseOf(t pando.Tenant) Load { return g.uses[t].load() }

func (a weight) load() Load {
	return Load{a.instances, a.memory, a.pids, float64(a.cpus) / 1e6}
}

// Publish notes the changes of steering tables in a transaction that was committed now. It notes
// only those of tenants with such a quota.
func Publish(w *World, t pando.Txn, now time.Time) {
	for _, v := range t.Put {
		e, ok := v.(pando.Endpoints)
		if !ok || w.Tenants[e.Service.Tenant].V.Quota.PublishPerSecond == 0 {
			continue
		}
		all := append(w.published[e.Service.Tenant], now)
		w.published[e.Service.Tenant] = all[max(0, len(all)-access.PublishPerSecondMax):]
	}
}

// Published returns the number of changes of a tenant's steering tables in the last second. It
// counts up to access.PublishPerSecondMax, of this process alone, if the tenant has such a quota.
func (g *ledgers) Published(t pando.Tenant, now time.Time) int {
	all := g.published[t]
	at, _ := slices.BinarySearchFunc(all, now.Add(-time.Second), time.Time.Compare)
	return len(all) - at
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
	l.count(was, -1)
	l.count(now, 1)
	if now.Name == "" {
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

// count counts the services of each tenant.
func (l *ledgers) count(s pando.Service, n int) {
	if s.Name == "" {
		return
	}
	if l.services[s.Tenant] += n; l.services[s.Tenant] == 0 {
		delete(l.services, s.Tenant)
	}
}

// ServicesOf returns the number of services of a tenant.
func (l *ledgers) ServicesOf(t pando.Tenant) int { return l.services[t] }

// HasVIP returns the service with a VIP.
func (l *ledgers) HasVIP(a netip.Addr) (s pando.ServiceKey, ok bool) {
	s, ok = l.taken[a]
	return s, ok
}

// HostNames returns the hosts with a lease in order. The caller must not change the slice, and the
// world may change it later.
func (l *ledgers) HostNames() []pando.HostName { return l.hostNames }

func (l *ledgers) arrive(h pando.HostName) {
	if at, there := slices.BinarySearch(l.hostNames, h); !there {
		l.hostNames = slices.Insert(l.hostNames, at, h)
	}
}

func (l *ledgers) depart(h pando.HostName) {
	if at, there := slices.BinarySearch(l.hostNames, h); there {
		l.hostNames = slices.Delete(l.hostNames, at, at+1)
	}
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
