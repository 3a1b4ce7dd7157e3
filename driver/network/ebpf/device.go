package ebpf

import (
	"errors"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// Device is the dummy device for the host's own packets to VIPs.
const Device = "pando0"

// ensureDevice brings pando0 up, with the gateway's addresses and the routes to every VIP.
func ensureDevice(c Config) (netlink.Link, error) {
	dev, err := netlink.LinkByName(Device)
	if err != nil {
		if dev, err = makeDevice(); err != nil {
			return nil, err
		}
	}
	six := hasIPv6()
	if err := forward(six, c.Uplinks, c.Settings); err != nil {
		return nil, err
	}
	if err := netlink.LinkSetUp(dev); err != nil {
		return nil, err
	}
	route := &netlink.Route{LinkIndex: dev.Attrs().Index, Dst: prefix(pando.VIPs4),
		Scope: netlink.SCOPE_LINK}
	if c.HostAddr.Is4() {
		route.Src = c.HostAddr.AsSlice()
	}
	gateway4 := &netlink.Addr{IPNet: netlink.NewIPNet(pando.Gateway4.AsSlice())}
	if err := errors.Join(netlink.AddrReplace(dev, gateway4),
		netlink.RouteReplace(route)); err != nil || !six {
		return dev, err
	}
	gateway6 := &netlink.Addr{IPNet: netlink.NewIPNet(pando.Gateway6.AsSlice()),
		Flags: unix.IFA_F_NODAD}
	route6 := &netlink.Route{LinkIndex: dev.Attrs().Index, Dst: prefix(pando.VIPs6)}
	if c.HostAddr6.Is6() {
		route6.Src = c.HostAddr6.AsSlice()
	}
	err = netlink.RouteReplace(route6)
	if route6.Src != nil && errors.Is(err, unix.EINVAL) { // no device has the address
		route6.Src = nil
		err = netlink.RouteReplace(route6)
	}
	return dev, errors.Join(netlink.AddrReplace(dev, gateway6), err)
}

func hasIPv6() bool {
	off, err := os.ReadFile(sysctls + "ipv6/conf/all/disable_ipv6")
	return err == nil && off[0] == '0'
}

// makeDevice creates pando0: a dummy, or one end of a veth pair where the kernel has no dummies.
// Nothing ever leaves it, since the program at its egress sends every packet elsewhere. ARP is off,
// so that the kernel asks for no VIP's address.
func makeDevice() (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = Device
	err := netlink.LinkAdd(&netlink.Dummy{LinkAttrs: attrs})
	if errors.Is(err, unix.EOPNOTSUPP) {
		if err = netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: Device + "-end"}); err != nil {
			return nil, err
		}
		end, eerr := netlink.LinkByName(Device + "-end")
		if eerr != nil {
			return nil, eerr
		}
		err = netlink.LinkSetUp(end)
	}
	if err != nil {
		return nil, err
	}
	dev, err := netlink.LinkByName(Device)
	if err != nil {
		return nil, err
	}
	return dev, netlink.LinkSetARPOff(dev)
}

func prefix(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
