// Package lifecycle says where an instance goes, when a failed one is replaced, and how a new revision takes over from an
// old one.
//
// It never starts or stops anything and knows no time but what it is told: every function goes from what is known to
// what to do, with the reason.
package lifecycle

import (
	"cmp"
	"fmt"
	"slices"

	"pando.run/pando"
)

// InstancesPerHostMax is bounded by a host's range of addresses (pando.InstanceRange) less a reserve for those that leave.
const InstancesPerHostMax = 3500

// Place chooses the host of a new instance: the asker's own when it has room (nearest state, nearest warm reserve), else
// the one with the fewest instances. all are the instances of every service.
func Place(hosts []pando.Host, all []pando.Instance, s pando.Spec, prefer pando.HostName) (pando.Host, string, error) {
	if len(hosts) == 0 {
		return pando.Host{}, "", fmt.Errorf("%w: no host takes instances; is the agent running? (`pando up`)", pando.ErrNoRoom)
	}
	on := map[pando.HostName]int{}
	memory := map[pando.HostName]int64{}
	for _, i := range all {
		on[i.Host]++
		if i.Service == s.Key() {
			memory[i.Host] += s.Resources.MemoryBytes
		}
	}
	room := func(h pando.Host) bool {
		fits := h.Memory == 0 || memory[h.Name]+s.Resources.MemoryBytes <= h.Memory
		return on[h.Name] < InstancesPerHostMax && fits
	}
	var with []pando.Host
	for _, h := range hosts {
		if !room(h) {
			continue
		}
		if h.Name == prefer {
			return h, fmt.Sprintf("on %s, the asker's own host", h.Name), nil
		}
		with = append(with, h)
	}
	if len(with) == 0 {
		return pando.Host{}, "", fmt.Errorf("%w for an instance of %s that may use %d bytes of memory", pando.ErrNoRoom, s.Key(), s.Resources.MemoryBytes)
	}
	h := slices.MinFunc(with, func(a, b pando.Host) int {
		return cmp.Or(cmp.Compare(on[a.Name], on[b.Name]), cmp.Compare(a.Name, b.Name))
	})
	return h, fmt.Sprintf("on %s, which has the fewest instances (%d)", h.Name, on[h.Name]), nil
}
