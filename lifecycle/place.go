// Package lifecycle decides where an instance runs, which one leaves, when a failed one is
// replaced, how a new revision takes over from an old one, and which phase a service is in.
//
// It never starts or stops anything, and it reads no clock. Every function maps its arguments to
// the next action, with the reason.
package lifecycle

import (
	"cmp"
	"fmt"
	"slices"

	"pando.run/pando"
	"pando.run/pando/access/share"
)

// InstancesPerHostMax is a host's range of addresses (pando.InstanceRange) less a reserve for
// instances that leave.
const InstancesPerHostMax = 3500

// hostBound is how tenants share the instances of a host.
var hostBound = share.Bound{Total: InstancesPerHostMax, Each: InstancesPerHostMax / 2,
	Reserve: InstancesPerHostMax / 16}

// Load is the sum of the limits of a host's instances.
type Load struct {
	Instances   int
	MemoryBytes int64
	PIDs        int64
	CPUs        float64
}

// Loads returns the load of each host. resources returns the limits of one instance.
func Loads(
	all []pando.Instance, resources func(pando.Instance) pando.Resources,
) map[pando.HostName]Load {
	out := map[pando.HostName]Load{}
	for _, i := range all {
		out[i.Host] = out[i.Host].Plus(one(resources(i)))
	}
	return out
}

// Plus returns the sum of both loads.
func (l Load) Plus(o Load) Load {
	return Load{
		l.Instances + o.Instances, l.MemoryBytes + o.MemoryBytes, l.PIDs + o.PIDs, l.CPUs + o.CPUs,
	}
}

// one returns the load of an instance with these limits.
func one(r pando.Resources) Load { return Load{1, r.MemoryBytes, r.PIDs, r.CPUs} }

// weight returns the largest share that a load takes of a host's resources. Limits of processor
// time may add up to more than a host has, because instances share it. They only order the hosts.
func (l Load) weight(h *pando.Host) float64 {
	most := l.share(h)
	if h.CPUs > 0 {
		most = max(most, l.CPUs/h.CPUs)
	}
	return most
}

// share returns the largest part that a load takes of instances, memory or processes of a host. 1
// is all of it.
func (l Load) share(h *pando.Host) float64 {
	most := float64(l.Instances) / InstancesPerHostMax
	if h.Memory > 0 {
		most = max(most, float64(l.MemoryBytes)/float64(h.Memory))
	}
	if h.PIDs > 0 {
		most = max(most, float64(l.PIDs)/float64(h.PIDs))
	}
	return most
}

// Wish describes the next instance of a service, with the facts that choose its host.
type Wish struct {
	Spec pando.Spec     // of the instance
	Rule pando.Place    // of the service, from its newest spec
	Home pando.HostName // of all instances; "": they need no common host
	// Beside returns the number of instances of the service that run on a host or soon will.
	Beside func(pando.HostName) int
	// Fellows returns how many of them stay with the new instance, on the host, and do not leave in a
	// rollout. They count first in a spread. Nil: all of them.
	Fellows func(pando.HostName) int
	// Apart reports whether a host has instances of the service in Rule.Apart.
	Apart func(pando.HostName) bool
	// Lacks returns why a host does not give a grant of the spec, or "". Nil: it has none.
	Lacks func(pando.HostName) string
	Loads map[pando.HostName]Load
	// Seats returns the instances on a host of the tenant of Spec, and those of operators. Nil: unknown,
	// and the tenant has no share.
	Seats func(pando.HostName) (own, operators int)
}

// with returns the load of a host with the new instance.
func (w Wish) with(h *pando.Host) Load { return w.Loads[h.Name].Plus(one(w.Spec.Resources)) }

// fits reports whether a host has room for a load.
func (l Load) fits(h *pando.Host) bool { return l.share(h) <= 1 }

// Place chooses the host of a new instance among those that take instances. It returns the
// service's home, which has its state and its VIP. A service that spreads goes where the fewest of
// its instances are. Any other service without a home goes to the least loaded host with room.
func Place(hosts []pando.Host, w Wish) (h pando.Host, why string, err error) {
	if len(hosts) == 0 {
		return h, "", fmt.Errorf("%w: no host takes instances; is the agent running? (`pando up`)",
			pando.ErrNoRoom)
	}
	with := make([]candidate, 0, len(hosts))
	for n := range hosts {
		h := &hosts[n]
		load := w.with(h)
		switch {
		case h.Name == w.Home && load.fits(h) && w.crowds(h.Name) == nil:
			return *h, fmt.Sprintf("on %s, the home of %s", h.Name, w.Spec.Key()), nil
		case h.Name == w.Home && load.fits(h):
			return pando.Host{}, "", fmt.Errorf("%w for another instance of %s: its home %s has a share of its "+
				"instances for each tenant: %w", pando.ErrNoRoom, w.Spec.Key(), w.Home, w.crowds(h.Name))
		case h.Name == w.Home:
			return pando.Host{}, "", fmt.Errorf("%w for another instance of %s, which may use "+
				"%d bytes of memory and %d processes: its home %s is full; lower its resources, or end "+
				"something there", pando.ErrNoRoom, w.Spec.Key(), w.Spec.Resources.MemoryBytes,
				w.Spec.Resources.PIDs, w.Home)
		case load.fits(h) && w.crowds(h.Name) == nil && Unfit(*h, w.Rule, w.Apart, w.Lacks) == "":
			with = append(with, candidate{host: h, load: load})
		}
	}
	if len(with) == 0 {
		return pando.Host{}, "", fmt.Errorf("%w for an instance of %s that may use %d bytes of memory "+
			"and %d processes; lower its resources, or add a host (`pando token`); "+
			"`pando why %[2]s --pending` explains each host",
			pando.ErrNoRoom, w.Spec.Key(), w.Spec.Resources.MemoryBytes, w.Spec.Resources.PIDs)
	}
	h = *w.best(hosts, with)
	return h, w.praise(h), nil
}

// candidate is a host with room for the next instance. It is judged once per placement, which looks
// at every host of the cluster.
type candidate struct {
	host   *pando.Host
	load   Load // with the new instance
	same   int  // fellows with the same value of the label
	fellow int  // fellows on the host
	there  int  // instances of the service with the same value of its label
	beside int  // instances of the service on the host
	weight float64
}

func (a candidate) compare(b candidate) int {
	return cmp.Or(
		cmp.Compare(a.same, b.same),
		cmp.Compare(a.fellow, b.fellow),
		cmp.Compare(a.there, b.there),
		cmp.Compare(a.beside, b.beside),
		cmp.Compare(a.weight, b.weight),
		cmp.Compare(a.load.Instances, b.load.Instances),
		cmp.Compare(a.host.Name, b.host.Name),
	)
}

// there returns the number of instances on a host, and of those that stay with the new one.
func (w Wish) there(h pando.HostName) (all, fellows int) {
	if all = w.Beside(h); w.Fellows == nil {
		return all, all
	}
	return all, w.Fellows(h)
}

// fellows returns the number of instances on a host that stay with the new one.
func (w Wish) fellows(h pando.HostName) int {
	_, n := w.there(h)
	return n
}

// best returns the host that the service prefers. Instances on all hosts count in the spread over
// the values of a label. What stays counts first: a rollout that placed beside what leaves would
// end with all on one host.
func (w Wish) best(all []pando.Host, with []candidate) *pando.Host {
	same, there := map[string]int{}, map[string]int{} // by the value of the label
	label := w.Rule.Spread
	spreads := label != "" && w.Home == ""
	byLabel := spreads && label != pando.SpreadHost
	if byLabel {
		for _, h := range all {
			n, fellows := w.there(h.Name)
			same[h.Label(label)] += fellows
			there[h.Label(label)] += n
		}
	}
	best := -1
	for n := range with {
		c := &with[n]
		c.weight = c.load.weight(c.host)
		if byLabel {
			c.same, c.there = same[c.host.Label(label)], there[c.host.Label(label)]
		}
		if spreads {
			c.beside, c.fellow = w.there(c.host.Name)
		}
		if best < 0 || c.compare(with[best]) < 0 {
			best = n
		}
	}
	return with[best].host
}

// praise returns the reason for the chosen host.
func (w Wish) praise(h pando.Host) string {
	switch label := w.Rule.Spread; {
	case label == "" || w.Home != "":
		return fmt.Sprintf("on %s, the least loaded host (%d instances)",
			h.Name, w.Loads[h.Name].Instances)
	case label == pando.SpreadHost:
		return fmt.Sprintf("on %s, with the fewest instances of %s (%d)",
			h.Name, w.Spec.Key(), w.fellows(h.Name))
	default:
		return fmt.Sprintf("on %s of %s %q, with the fewest instances of %s (%d on the host)",
			h.Name, label, h.Label(label), w.Spec.Key(), w.fellows(h.Name))
	}
}

// Claim returns the instance in reserve that a start of a revision takes: the first one on a host
// where an instance of the service may start, and of those on the host with the fewest fellows.
func Claim(
	reserve []pando.Instance, revision int, on func(pando.HostName) bool,
	fellows func(pando.HostName) int,
) (pando.Instance, bool) {
	best, least := -1, 0
	for n := range reserve {
		i := &reserve[n]
		if i.Phase != pando.PhaseWarm || i.Revision != revision || !on(i.Host) {
			continue
		}
		if f := fellows(i.Host); best < 0 || f < least {
			best, least = n, f
		}
	}
	if best < 0 {
		return pando.Instance{}, false
	}
	return reserve[best], true
}

// Evens returns the instance that another one on the host `to` may replace, so that the instances of
// a service that spreads become even. of returns the group of a host: itself, or the value of its
// label. It returns "" while the groups differ by less than two. The youngest leaves first.
func Evens(
	instances []pando.Instance, to pando.HostName, of func(pando.HostName) string,
) pando.InstanceID {
	counts := map[string]int{}
	for n := range instances {
		if i := &instances[n]; i.Capacity() {
			counts[of(i.Host)]++
		}
	}
	most := ""
	for n := range instances { // in order, so that the result does not depend on a map
		if g := of(instances[n].Host); counts[g] > counts[most] {
			most = g
		}
	}
	if counts[most]-counts[of(to)] < 2 {
		return ""
	}
	for _, i := range slices.Backward(instances) {
		if i.Phase == pando.PhaseInRotation && of(i.Host) == most {
			return i.ID
		}
	}
	return ""
}
