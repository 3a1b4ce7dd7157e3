package firewall

import (
	"errors"
	"net/netip"

	"github.com/cilium/ebpf"

	"pando.run/pando"
)

// named are the ordinals of stateful services that a tenant may reach, on all hosts.
type named struct {
	entries *ebpf.Map
	of      map[uint64]map[[4]uint32]bool // addresses, by the number of their service
}

// recall returns the ordinals that a former agent opened. The next table of their service corrects
// them.
func recall(entries *ebpf.Map) named {
	n := named{entries, map[uint64]map[[4]uint32]bool{}}
	var at [4]uint32
	var e reachNamed
	for all := entries.Iterate(); all.Next(&at, &e); {
		n.add(e.Service, at)
	}
	return n
}

func (n named) add(service uint64, at [4]uint32) {
	if n.of[service] == nil {
		n.of[service] = map[[4]uint32]bool{}
	}
	n.of[service][at] = true
}

// opened returns the addresses of a table that the tenant may reach: of ordinals, and of instances
// that clients reach straight.
func opened(t pando.SteeringTable) (all []netip.Addr) {
	for _, o := range t.Names {
		all = append(all, o.IP4, o.IP6)
	}
	if t.At == pando.AtConnect {
		for _, e := range t.Endpoints {
			all = append(all, e.Link.IP4, e.Link.IP6, e.Own4, e.Own6)
		}
	}
	return all
}

// set opens the addresses of a table to their tenant, and closes those of its service that ended.
func (n named) set(t pando.SteeringTable) error {
	mine := owner(t.Service)
	before, open := n.of[mine.Service], opened(t)
	if len(open) == 0 && before == nil {
		return nil
	}
	entry := reachNamed{Tenant: mine.Tenant, Service: mine.Service}
	for i, p := range t.Ports[:min(len(t.Ports), len(entry.Ports))] {
		entry.Ports[i] = network(p.Target)
	}
	delete(n.of, mine.Service)
	var errs []error
	for _, a := range open {
		if a.IsValid() {
			errs = append(errs, n.entries.Put(key(a), entry))
			n.add(mine.Service, key(a))
			delete(before, key(a))
		}
	}
	for at := range before {
		if !n.taken(at) {
			errs = append(errs, missingIsFine(n.entries.Delete(at)))
		}
	}
	return errors.Join(errs...)
}

// taken reports whether another service has an ordinal at an address that one left.
func (n named) taken(at [4]uint32) bool {
	for _, all := range n.of {
		if all[at] {
			return true
		}
	}
	return false
}
