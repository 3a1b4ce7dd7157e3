package balance

import (
	"fmt"
	"net/netip"
	"slices"

	"pando.run/pando"
)

// NoRoutes returns why a host announces no VIP to routers, or "" if it may. hosts have a lease, and
// dead ones are dead by the host's probes. blind is why the host does not follow the store, and
// sighted means that another host announces VIPs and follows it.
//
// A host that is merely blind keeps its routes: its tables steer on, and all hosts may be blind.
func NoRoutes(leaving bool, hosts, dead int, blind string, sighted bool) string {
	switch {
	case leaving:
		return "it leaves"
	case !MayAnswer(hosts, dead):
		return fmt.Sprintf("it reaches %d of %d hosts, and the others serve", hosts-dead, hosts)
	case blind != "" && sighted:
		return fmt.Sprintf("others follow the store and it does not: %s", blind)
	}
	return ""
}

// Serves reports whether a host with this table can serve new flows. lost are the hosts to which it
// has no way. A service without an instance is served: its clients get an answer, and its first
// packet may start one. While all instances drain, an endpoint in reach serves the old flows.
func Serves(t pando.SteeringTable, lost []netip.Addr) bool {
	if len(lost) == 0 {
		return true
	}
	takes := slices.ContainsFunc(t.Endpoints, func(e pando.Endpoint) bool { return e.Weight > 0 })
	return slices.ContainsFunc(t.Endpoints, func(e pando.Endpoint) bool {
		return (e.Weight > 0 || !takes) && !slices.Contains(lost, e.Remote)
	})
}
