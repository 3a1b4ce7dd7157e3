package shim

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/wire"
)

// enterNetwork makes this thread a member of a network. Nil: it stays.
func enterNetwork(network *os.File) error {
	if network == nil {
		return nil
	}
	if err := unix.Setns(int(network.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter the network of the host: %w", err)
	}
	return nil
}

// keepNetwork keeps the network that came with a program.
func keepNetwork(s *shim, f *os.File) {
	if f == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.network != nil {
		s.network.Close()
	}
	s.network = f
}

func family(a netip.Addr) int {
	if a.Is4() {
		return netlink.FAMILY_V4
	}
	return netlink.FAMILY_V6
}

// leaveTo routes packets of this namespace to the VIP, and answers from the VIP to the instance's
// own addresses, by the main table.
func leaveTo(vip netip.Addr, own []netlink.Addr) error {
	to := outward(vip)
	to.Dst = netlink.NewIPNet(vip.AsSlice())
	rules := []*netlink.Rule{to}
	for _, a := range own {
		if (a.IP.To4() != nil) != vip.Is4() || a.IP.IsLinkLocalUnicast() {
			continue
		}
		back := outward(vip)
		back.Src, back.Dst = netlink.NewIPNet(vip.AsSlice()), netlink.NewIPNet(a.IP)
		rules = append(rules, back)
	}
	for _, r := range rules {
		if err := netlink.RuleAdd(r); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	return nil
}

// loopback is the index of lo in every network namespace.
const loopback = 1

// outward returns a rule for packets that this namespace sends, looked up in the main table.
func outward(vip netip.Addr) *netlink.Rule {
	r := netlink.NewRule()
	r.Priority, r.Table, r.IifName, r.Family = preferOutward, unix.RT_TABLE_MAIN, "lo", family(vip)
	return r
}

// preferOutward is the priority of an instance's rules for its VIPs. Its own packets to them leave by
// its link, so that the host steers them; without these rules the kernel would deliver them to the
// instance itself, at a port where nothing listens. So the driver moves the rule for local addresses
// behind them.
const preferOutward = 10

// serveVIPs makes the instance in this network namespace answer for its service's addresses, and
// lets its own program reach them by way of the host's steering.
func serveVIPs(vips []netip.Addr) error {
	if len(vips) == 0 {
		return nil
	}
	lo := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: loopback}}
	link, err := netlink.LinkByName("eth0")
	if err != nil {
		return fmt.Errorf("find the instance's link: %w", err)
	}
	addrs, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list the instance's addresses: %w", err)
	}
	if err := takeFronts(len(vips) > 1); err != nil {
		return fmt.Errorf("let the instance take packets to hosts: %w", err)
	}
	for _, a := range vips {
		if err := netlink.AddrAdd(lo, wire.HostAddress(a)); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("give the instance its service's address %s: %w", a, err)
		}
		if err := leaveTo(a, addrs); err != nil {
			return fmt.Errorf("route the instance's packets to its own VIP %s: %w", a, err)
		}
	}
	return nil
}

// takeFronts makes the instance in this network namespace answer for the fronts of all hosts.
func takeFronts(six bool) error {
	v4, v6 := pando.FrontRanges()
	ranges := []netip.Prefix{v4, v6}
	if !six {
		ranges = ranges[:1]
	}
	for _, r := range ranges {
		err := netlink.RouteReplace(&netlink.Route{
			LinkIndex: loopback, Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST,
			Dst: &net.IPNet{IP: r.Addr().AsSlice(), Mask: net.CIDRMask(r.Bits(), r.Addr().BitLen())},
		})
		if err != nil {
			return err
		}
	}
	return nil
}
