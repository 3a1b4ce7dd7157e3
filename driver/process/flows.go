package process

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// TCP states in which the instance may still send or receive.
var openStates = map[uint8]bool{1: true, 2: true, 3: true, 4: true, 5: true, 8: true, 9: true,
	11: true}

// Flows implements pando.Sandbox. It counts TCP connections and connected UDP sockets with one of
// the service's addresses on this end. Direct ones, to the instance's own address, do not count.
func (b *sandbox) Flows(context.Context) (int, error) {
	ns, err := netns.GetFromPath(b.slot.netns())
	if err != nil {
		return 0, fmt.Errorf("count the flows of %s: %w", b.slot.Instance, err)
	}
	defer ns.Close()
	n := 0
	err = within(ns, func() error {
		for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
			tcp, err := netlink.SocketDiagTCP(family)
			if err != nil {
				return err
			}
			for _, s := range tcp {
				if openStates[s.State] && steered(s) {
					n++
				}
			}
			udp, err := netlink.SocketDiagUDP(family)
			if err != nil {
				return err
			}
			for _, s := range udp {
				if s.ID.DestinationPort != 0 && steered(s) {
					n++
				}
			}
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("count the flows of %s: %w", b.slot.Instance, err)
	}
	return n, nil
}

// steered reports whether a socket's own address is a VIP.
func steered(s *netlink.Socket) bool {
	a, ok := netip.AddrFromSlice(s.ID.Source)
	a = a.Unmap()
	return ok && (pando.VIPs4.Contains(a) || pando.VIPs6.Contains(a))
}
