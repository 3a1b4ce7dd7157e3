package process

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/netspace"
)

func host(a netip.Addr) *netlink.Addr {
	addr := &netlink.Addr{IPNet: netlink.NewIPNet(a.AsSlice())}
	if a.Is6() {
		// IPv4 makes no such route for one address
		addr.Flags = unix.IFA_F_NODAD | unix.IFA_F_NOPREFIXROUTE
	}
	return addr
}

// loopback is the index of lo in every network namespace.
const loopback = 1

// Priorities of the routing rules of an instance. Its own packets to its VIP leave by its link, so
// that the host steers them; without these rules the kernel would deliver them to the instance
// itself, at a port where nothing listens. So the rule for local addresses comes after them.
const (
	preferOutward = 10
	preferLocal   = 100
)

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
		if err := netlink.AddrAdd(lo, host(a)); err != nil && !errors.Is(err, unix.EEXIST) {
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

// outward returns a rule for packets that this namespace sends, looked up in the main table.
func outward(vip netip.Addr) *netlink.Rule {
	r := netlink.NewRule()
	r.Priority, r.Table, r.IifName, r.Family = preferOutward, unix.RT_TABLE_MAIN, "lo", family(vip)
	return r
}

func family(a netip.Addr) int {
	if a.Is4() {
		return netlink.FAMILY_V4
	}
	return netlink.FAMILY_V6
}

// localLater moves the rule for local addresses behind those of leaveTo.
func localLater(inside *netlink.Handle) error {
	for _, of := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		first, later := netlink.NewRule(), netlink.NewRule()
		first.Family, first.Table, first.Priority = of, unix.RT_TABLE_LOCAL, 0
		later.Family, later.Table, later.Priority = of, unix.RT_TABLE_LOCAL, preferLocal
		if err := inside.RuleAdd(later); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
		if err := inside.RuleDel(first); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}

func neighbour(l netlink.Link, ip net.IP, mac string) *netlink.Neigh {
	hw, _ := net.ParseMAC(mac)
	return &netlink.Neigh{LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT, IP: ip,
		HardwareAddr: hw}
}

// defaultRoute sends packets by a gateway, from an address of the instance: of IPv6, the kernel
// would take the VIP as the source of packets to the VIP.
func defaultRoute(l netlink.Link, via net.IP, from netip.Addr) *netlink.Route {
	all := &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
	if via.To4() == nil {
		all = &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	}
	return &netlink.Route{LinkIndex: l.Attrs().Index, Dst: all, Gw: via, Src: from.AsSlice(),
		Flags: int(netlink.FLAG_ONLINK)}
}

func hostRoute(l netlink.Link, a netip.Addr) *netlink.Route {
	return &netlink.Route{LinkIndex: l.Attrs().Index, Dst: netlink.NewIPNet(a.AsSlice()),
		Scope: netlink.SCOPE_LINK}
}

// bothUp waits until both ends are up. An earlier SYN would be lost, and its retry comes a second
// later.
func bothUp(inside *netlink.Handle, outer, inner int) error {
	for deadline := time.Duration(0); deadline < linkWaitMax; deadline += 100 * time.Microsecond {
		a, err := netlink.LinkByIndex(outer)
		if err != nil {
			return err
		}
		b, err := inside.LinkByIndex(inner)
		if err != nil {
			return err
		}
		if a.Attrs().OperState == netlink.OperUp && b.Attrs().OperState == netlink.OperUp {
			return nil
		}
		unix.Nanosleep(&unix.Timespec{Nsec: int64(100 * time.Microsecond)}, nil)
	}
	return fmt.Errorf("%w: the link did not come up within %s", pando.ErrNotReady, linkWaitMax)
}

// everyGroup lets every user of an instance send echo requests, as other runtimes do: monitors and
// health checks ping. They need no raw socket for it.
const everyGroup = "0 2147483647"

// sysctls sets the options of an instance's link and namespace, before either is up.
func (s *slot) sysctls(ns netns.NsHandle) error {
	for _, name := range []string{"net/ipv4/conf/" + s.Link + "/rp_filter", "net/ipv6/conf/" + s.Link +
		"/accept_ra", "net/ipv6/conf/" + s.Link + "/accept_dad"} {
		if err := os.WriteFile("/proc/sys/"+name, []byte("0"), 0); err != nil {
			return err
		}
	}
	return netspace.In(ns, func() error {
		for name, value := range map[string]string{
			"net/ipv4/ip_unprivileged_port_start": "0", "net/ipv4/conf/all/rp_filter": "0",
			"net/ipv4/ping_group_range":       everyGroup,
			"net/ipv4/conf/eth0/rp_filter":    "0",
			"net/ipv4/conf/eth0/accept_local": "1", // its own packets come back from the host's steering
			"net/ipv6/conf/eth0/accept_ra":    "0", "net/ipv6/conf/eth0/accept_dad": "0",
			"net/ipv6/conf/all/accept_dad": "0",
		} {
			if err := os.WriteFile("/proc/sys/"+name, []byte(value), 0); err != nil {
				return err
			}
		}
		return nil
	})
}

// splitStat splits /proc/PID/stat after the program's name, so that field 22 of proc(5) is index
// 19.
func splitStat(s string) []string {
	at := strings.LastIndex(s, ") ")
	if at < 0 {
		return nil
	}
	return strings.Fields(s[at+2:])
}
