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
)

// InstancesPerHostMax is a host's range of addresses (pando.InstanceRange) less a reserve for
// instances that leave.
const InstancesPerHostMax = 3500

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
func (l Load) weight(h pando.Host) float64 {
	most := l.share(h)
	if h.CPUs > 0 {
		most = max(most, l.CPUs/h.CPUs)
	}
	return most
}

// share returns the largest part that a load takes of instances, memory or processes of a host. 1
// is all of it.
func (l Load) share(h pando.Host) float64 {
	most := float64(l.Instances) / InstancesPerHostMax
	if h.Memory > 0 {
		most = max(most, float64(l.MemoryBytes)/float64(h.Memory))
	}
	if h.PIDs > 0 {
		most = max(most, float64(l.PIDs)/float64(h.PIDs))
	}
	return most
}

// Place chooses the host of a new instance. It returns the service's home, which has its state and
// its VIP. A service without a home goes to the least loaded host that has room.
func Place(
	hosts []pando.Host, loads map[pando.HostName]Load, s pando.Spec, home pando.HostName,
) (h pando.Host, why string, err error) {
	if len(hosts) == 0 {
		return h, "", fmt.Errorf("%w: no host takes instances; is the agent running? (`pando up`)",
			pando.ErrNoRoom)
	}
	room := func(h pando.Host) bool {
		return loads[h.Name].Plus(one(s.Resources)).share(h) <= 1
	}
	weight := func(h pando.Host) float64 { return loads[h.Name].Plus(one(s.Resources)).weight(h) }
	var with []pando.Host
	for _, h := range hosts {
		switch {
		case h.Name == home && room(h):
			return h, fmt.Sprintf("on %s, the home of %s", h.Name, s.Key()), nil
		case h.Name == home:
			return pando.Host{}, "", fmt.Errorf("%w for another instance of %s, which may use "+
				"%d bytes of memory and %d processes: its home %s is full; lower its resources, or end "+
				"something there",
				pando.ErrNoRoom, s.Key(), s.Resources.MemoryBytes, s.Resources.PIDs, home)
		case room(h):
			with = append(with, h)
		}
	}
	if len(with) == 0 {
		return pando.Host{}, "", fmt.Errorf("%w for an instance of %s that may use %d bytes of memory "+
			"and %d processes; lower its resources, or add a host (`pando token`)",
			pando.ErrNoRoom, s.Key(), s.Resources.MemoryBytes, s.Resources.PIDs)
	}
	h = slices.MinFunc(with, func(a, b pando.Host) int {
		return cmp.Or(
			cmp.Compare(weight(a), weight(b)),
			cmp.Compare(loads[a.Name].Instances, loads[b.Name].Instances),
			cmp.Compare(a.Name, b.Name),
		)
	})
	why = fmt.Sprintf("on %s, the least loaded host (%d instances)", h.Name, loads[h.Name].Instances)
	return h, why, nil
}

// Claim returns the instance in reserve that a start of a revision takes: the first one on the
// home.
func Claim(reserve []pando.Instance, revision int, home pando.HostName) (pando.Instance, bool) {
	for _, i := range reserve {
		if i.Phase == pando.PhaseWarm && i.Revision == revision && i.Host == home {
			return i, true
		}
	}
	return pando.Instance{}, false
}
