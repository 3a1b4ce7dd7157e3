package steering

import (
	"net"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// everyPlaceReaches6 checks hosts that reach each other by IPv6 alone. The first host has another
// address at the link to the second: its tunnel leaves from the published one.
func everyPlaceReaches6(t *testing.T, e *estate) {
	l, err := netlink.LinkByName("h2")
	check(t, err)
	_, other, err := net.ParseCIDR("2001:db8:99::1/128")
	check(t, err)
	check(t, netlink.AddrReplace(l, &netlink.Addr{IPNet: other, Flags: unix.IFA_F_NODAD}))
	everyPlaceReaches(t, e)
}

// routesLeadByIPv6 checks the way to instances and VIPs of a host that has no IPv4 address.
func routesLeadByIPv6(t *testing.T, e *estate) {
	e.join(1, "b", 100)
	e.publish(e.hosts[1])
	h, far := e.hosts[0], e.hosts[1]
	table := e.table(h)
	table.Endpoints, table.Via4, table.Via6 = nil, far.own[1], far.own[1]
	check(t, h.Publish(t.Context(), table))
	instances, _ := pando.InstanceRange(far.slot)
	for _, dst := range []*net.IPNet{
		{IP: vip[0].AsSlice(), Mask: net.CIDRMask(32, 32)},
		{IP: instances.Addr().AsSlice(), Mask: net.CIDRMask(instances.Bits(), 32)},
	} {
		ways, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Dst: dst},
			netlink.RT_FILTER_DST)
		check(t, err)
		if len(ways) != 1 || ways[0].Via == nil {
			t.Errorf("the routes to %s are %v, want one by way of %s", dst, ways, far.own[1])
		}
	}
	for six := range 2 {
		c := e.dial("outside", six)
		if by := c.who(t); by != "b" {
			t.Errorf("by routes, a connection to %s is answered by %q", vip[six], by)
		}
	}
}
