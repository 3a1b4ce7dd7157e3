package process

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/network/netspace"
)

// preferLocal is the priority of the rule for local addresses, behind the shim's rules for VIPs.
const preferLocal = 100

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
