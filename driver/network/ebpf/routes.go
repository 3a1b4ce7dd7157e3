package ebpf

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// elsewhere marks a VIP that another host serves (bpf/maps.h).
const elsewhere = 1 << 31

// routeProtocol marks this driver's routes, also in `ip route`. The kernel leaves this number and
// that of the table to others.
const (
	routeProtocol = 112
	routeTable    = 112
	rulePriority  = 1120
)

// passOn sets the routes by which packets to a VIP reach the host that serves it; an invalid via
// removes them. Packets from outside and from instances use a route table of their own. This host's
// own packets follow only once no endpoint is left here, because their connections would not
// survive another route. passOn reports whether there is a route. Two hosts may have IPv6 addresses
// and not reach each other by them. former reports that a former agent has set a route.
func (w ways) passOn(vip [4]uint32, via netip.Addr, endpoints int, former bool) (bool, error) {
	want, dst := way{via, via.IsValid() && endpoints == 0}, address6(vip)
	was, known := w[vip]
	if !known {
		known = !former
	}
	if known && was == want {
		return via.IsValid(), nil
	}
	own := via
	if !want.own {
		own = netip.Addr{}
	}
	p := netip.PrefixFrom(dst, dst.BitLen())
	err := errors.Join(toward(p, via, netip.Addr{}, routeTable),
		toward(p, own, netip.Addr{}, unix.RT_TABLE_MAIN))
	if errors.Is(err, unix.EHOSTUNREACH) && dst.Is6() {
		return false, nil
	}
	if err == nil {
		w[vip] = want
	}
	return err == nil && via.IsValid(), err
}

// ways has the routes that this process has set or found absent, by published VIP.
type ways map[[4]uint32]way

// way is the route of packets to a VIP.
type way struct {
	via netip.Addr
	own bool // also for packets of this host
}

// toward sets the route to a prefix by way of a host, or removes it. IPv4 routes may have an IPv6
// next hop (RFC 5549). src is the source of this host's own packets, if the host has that address;
// invalid: the kernel chooses.
func toward(p netip.Prefix, via, src netip.Addr, table int) error {
	route := &netlink.Route{Dst: prefix(p), Protocol: routeProtocol, Table: table}
	if !via.IsValid() {
		if err := netlink.RouteDel(route); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("remove the route to %s: %w", p, err)
		}
		return nil
	}
	if route.Gw = via.AsSlice(); p.Addr().Is4() && via.Is6() {
		route.Gw, route.Via = nil, &netlink.Via{AddrFamily: netlink.FAMILY_V6, Addr: via.AsSlice()}
	}
	route.Src = src.AsSlice()
	err := netlink.RouteReplace(route)
	if src.IsValid() && errors.Is(err, unix.EINVAL) {
		route.Src = nil
		err = netlink.RouteReplace(route)
	}
	if err != nil {
		return fmt.Errorf("set the route to %s by way of %s (are both on one network?): %w", p, via, err)
	}
	return nil
}

// isUnreached reports whether an error is that of a host to which the kernel has no route.
func isUnreached(err error) bool {
	return errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.ENETUNREACH)
}

// families returns the address families that this host uses.
func families() []int {
	if hasIPv6() {
		return []int{netlink.FAMILY_V4, netlink.FAMILY_V6}
	}
	return []int{netlink.FAMILY_V4}
}

// strangers returns the rule that makes packets from other senders use the driver's route table
// first.
func strangers(family int) *netlink.Rule {
	r := netlink.NewRule()
	r.Family, r.Invert, r.IifName, r.Table, r.Priority = family, true, "lo", routeTable, rulePriority
	return r
}

// Neighbours implements pando.Steering.
func (d *Driver) Neighbours(_ context.Context, hosts []pando.Host) error {
	d.mu.Lock()
	errs := []error{d.tunnel.admit(d.index, hosts)}
	d.mu.Unlock()
	if len(hosts) > 0 {
		for _, f := range families() {
			if err := netlink.RuleAdd(strangers(f)); err != nil && !errors.Is(err, unix.EEXIST) {
				errs = append(errs, fmt.Errorf("make the rule for packets for other hosts: %w", err))
			}
		}
	}
	want, near := map[netip.Prefix]bool{}, map[netip.Prefix]bool{}
	for _, h := range hosts {
		for p, via := range map[netip.Prefix]netip.Addr{h.Instances4: h.Address,
			h.Instances6: h.Address6} {
			if p.IsValid() && via.IsValid() && (via.Is6() || p.Addr().Is4()) {
				want[p] = true
				err := toward(p, via, d.ownAddress(p), unix.RT_TABLE_MAIN)
				if !errors.Is(err, unix.EHOSTUNREACH) || via.Is4() {
					errs = append(errs, err)
				}
				if err == nil {
					near[p] = true
				}
			}
		}
	}
	d.mu.Lock()
	d.straights.near = near
	d.mu.Unlock()
	set, err := routes()
	errs = append(errs, err)
	for _, r := range set {
		if ones, bits := r.Dst.Mask.Size(); ones < bits && !want[toPrefix(r.Dst)] {
			errs = append(errs, netlink.RouteDel(&r))
		}
	}
	return errors.Join(errs...)
}

// ownAddress returns the host's own address of the family of a prefix. The kernel would prefer the
// gateway's address, which every host has: no reply would come back.
func (c Config) ownAddress(p netip.Prefix) netip.Addr {
	for _, a := range []netip.Addr{c.HostAddr, c.HostAddr6} {
		if a.IsValid() && a.Is4() == p.Addr().Is4() {
			return a
		}
	}
	return netip.Addr{}
}

func toPrefix(n *net.IPNet) netip.Prefix {
	a, _ := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), ones)
}

// routes returns the routes of this driver and of former ones.
func routes() (out []netlink.Route, err error) {
	for _, f := range families() {
		for _, table := range []int{unix.RT_TABLE_MAIN, routeTable} {
			all, lerr := netlink.RouteListFiltered(f, &netlink.Route{Protocol: routeProtocol, Table: table},
				netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
			if lerr != nil && !errors.Is(lerr, unix.ENOENT) {
				err = errors.Join(err, lerr)
			}
			out = append(out, all...)
		}
	}
	return slices.DeleteFunc(out, func(r netlink.Route) bool { return r.Dst == nil }), err
}

// forgetRoutes removes all these routes, and the rules.
func forgetRoutes() error {
	set, err := routes()
	errs := []error{err}
	for _, r := range set {
		errs = append(errs, netlink.RouteDel(&r))
	}
	for _, f := range families() {
		if err := netlink.RuleDel(strangers(f)); err != nil && !errors.Is(err, unix.ENOENT) &&
			!errors.Is(err, unix.EAFNOSUPPORT) {
			errs = append(errs, fmt.Errorf("remove the rule for packets for other hosts: %w", err))
		}
	}
	return errors.Join(errs...)
}
