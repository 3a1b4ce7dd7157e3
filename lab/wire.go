package lab

import (
	"cmp"
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// mtuBytes leaves room for a tunnel's header around a full frame of 1500.
const mtuBytes = 1600

// vips are the ranges that the client reaches by way of the first host.
var vips = []string{"10.127.0.0/16", "fd70:616e:646f:ffff::/64"}

// inside opens netlink in the network namespace of a host.
func (h Host) inside() (*netlink.Handle, error) {
	ns, err := netns.GetFromPid(h.Pid)
	if err != nil {
		return nil, fmt.Errorf("network namespace of lab host %s: %w", h.Name, err)
	}
	defer ns.Close()
	return netlink.NewHandleAt(ns)
}

// wire joins every member to the switch's bridge: host i is 10.126.0.i, the client 10.126.0.254.
func (l *Lab) wire(mtu int) error {
	sw, err := l.Switch.inside()
	if err != nil {
		return err
	}
	defer sw.Close()
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "pando0", MTU: cmp.Or(mtu, mtuBytes)}}
	if err := sw.LinkAdd(bridge); err != nil {
		return fmt.Errorf("make the lab's bridge: %w", err)
	}
	if err := sw.LinkSetUp(bridge); err != nil {
		return fmt.Errorf("raise the lab's bridge: %w", err)
	}
	for i := range l.Hosts {
		if err := l.Hosts[i].plug(sw, bridge, i+1, l.Only6); err != nil {
			return fmt.Errorf("plug in lab host %s: %w", l.Hosts[i].Name, err)
		}
	}
	if err := l.Client.plug(sw, bridge, 254, l.Only6); err != nil {
		return fmt.Errorf("plug in the lab's client: %w", err)
	}
	if l.Router.Name == "" {
		return l.Client.routeVIPs(l.Hosts[0])
	}
	if err := l.Router.plug(sw, bridge, 253, l.Only6); err != nil {
		return fmt.Errorf("plug in the lab's router: %w", err)
	}
	return l.Client.routeVIPs(l.Router)
}

// replug joins a host that was booted again. The kernel removes the port of the former one late.
func (l *Lab) replug(h *Host, n int) error {
	sw, err := l.Switch.inside()
	if err != nil {
		return err
	}
	defer sw.Close()
	bridge, err := sw.LinkByName("pando0")
	if err != nil {
		return err
	}
	if old, err := sw.LinkByName(portName(n)); err == nil {
		if err := sw.LinkDel(old); err != nil && !errors.Is(err, unix.ENODEV) {
			return err
		}
	}
	return h.plug(sw, bridge, n, l.Only6)
}

// unplug takes the power from the switch's end of a member's cable.
func (l *Lab) unplug(h Host) error {
	if h.Port == "" || !h.alive() {
		return nil
	}
	return l.atSwitch(h, func(in *netlink.Handle, port netlink.Link) error {
		return in.LinkSetDown(port)
	})
}

func portName(n int) string { return fmt.Sprintf("port%d", n) }

func (h *Host) plug(sw *netlink.Handle, bridge netlink.Link, n int, only6 bool) error {
	port := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{
			Name: portName(n), MTU: bridge.Attrs().MTU, MasterIndex: bridge.Attrs().Index,
		},
		PeerName: "eth0", PeerMTU: uint32(bridge.Attrs().MTU), PeerNamespace: netlink.NsPid(h.Pid),
		// A host that boots again keeps its MAC, as a machine does.
		PeerHardwareAddr: net.HardwareAddr{0x02, 'p', 'a', 'n', 0, byte(n)},
	}
	if err := sw.LinkAdd(port); err != nil {
		return err
	}
	if err := sw.LinkSetUp(port); err != nil {
		return err
	}
	in, err := h.inside()
	if err != nil {
		return err
	}
	defer in.Close()
	h.Port = portName(n)
	h.IPv6 = fmt.Sprintf("fd70:616e:646f::%x", n)
	addresses := []string{h.IPv6 + "/64"}
	if !only6 {
		h.IPv4 = fmt.Sprintf("10.126.0.%d", n)
		addresses = append(addresses, h.IPv4+"/24")
	}
	for _, name := range []string{"lo", "eth0"} {
		link, err := in.LinkByName(name)
		if err != nil {
			return err
		}
		if err := in.LinkSetUp(link); err != nil {
			return err
		}
		if name == "lo" {
			continue
		}
		for _, text := range addresses {
			addr, err := netlink.ParseAddr(text)
			if err != nil {
				return err
			}
			if err := in.AddrAdd(link, addr); err != nil {
				return err
			}
		}
	}
	return nil
}

func (h Host) routeVIPs(via Host) error {
	in, err := h.inside()
	if err != nil {
		return err
	}
	defer in.Close()
	for i, gateway := range []string{via.IPv4, via.IPv6} {
		if gateway == "" {
			continue
		}
		_, dst, err := net.ParseCIDR(vips[i])
		if err != nil {
			return err
		}
		if err := in.RouteAdd(&netlink.Route{Dst: dst, Gw: net.ParseIP(gateway)}); err != nil {
			return fmt.Errorf("route %s via %s: %w", vips[i], gateway, err)
		}
	}
	return nil
}
