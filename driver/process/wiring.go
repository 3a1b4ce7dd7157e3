package process

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"pando.run/pando"
)

func host(a netip.Addr) *netlink.Addr {
	addr := &netlink.Addr{IPNet: netlink.NewIPNet(a.AsSlice())}
	if a.Is6() {
		addr.Flags = unix.IFA_F_NODAD
	}
	return addr
}

// loopback is the index of lo in every network namespace.
const loopback = 1

// serveVIPs makes the instance in this network namespace answer for its service's addresses.
func serveVIPs(vips []netip.Addr) error {
	lo := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: loopback}}
	for _, a := range vips {
		if err := netlink.AddrAdd(lo, host(a)); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("give the instance its service's address %s: %w", a, err)
		}
	}
	return nil
}

func neighbour(l netlink.Link, ip net.IP, mac string) *netlink.Neigh {
	hw, _ := net.ParseMAC(mac)
	return &netlink.Neigh{LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT, IP: ip, HardwareAddr: hw}
}

func defaultRoute(l netlink.Link, via net.IP) *netlink.Route {
	all := &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
	if via.To4() == nil {
		all = &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	}
	return &netlink.Route{LinkIndex: l.Attrs().Index, Dst: all, Gw: via, Flags: int(netlink.FLAG_ONLINK)}
}

func hostRoute(l netlink.Link, a netip.Addr) *netlink.Route {
	return &netlink.Route{LinkIndex: l.Attrs().Index, Dst: netlink.NewIPNet(a.AsSlice()), Scope: netlink.SCOPE_LINK}
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

// within runs f on a thread in a network namespace.
func within(ns netns.NsHandle, f func() error) error {
	done := make(chan error)
	go func() {
		// The thread ends with the goroutine: it never runs outside the namespace again.
		runtime.LockOSThread()
		if err := netns.Set(ns); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

// sysctls sets the options of an instance's link and namespace, before either is up.
func (s *slot) sysctls(ns netns.NsHandle) error {
	for _, name := range []string{"net/ipv4/conf/" + s.Link + "/rp_filter", "net/ipv6/conf/" + s.Link + "/accept_ra", "net/ipv6/conf/" + s.Link + "/accept_dad"} {
		if err := os.WriteFile("/proc/sys/"+name, []byte("0"), 0); err != nil {
			return err
		}
	}
	return within(ns, func() error {
		for name, value := range map[string]string{
			"net/ipv4/ip_unprivileged_port_start": "0", "net/ipv4/conf/all/rp_filter": "0", "net/ipv4/conf/eth0/rp_filter": "0",
			"net/ipv6/conf/eth0/accept_ra": "0", "net/ipv6/conf/eth0/accept_dad": "0", "net/ipv6/conf/all/accept_dad": "0",
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
