package process

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"pando.run/pando"
	"pando.run/pando/driver/network/netspace"
	"pando.run/pando/driver/network/sockets"
)

// Flows implements pando.Sandbox. It counts TCP connections and connected UDP sockets with one of
// the service's addresses on this end. Direct ones, to the instance's own address, do not count.
func (b *sandbox) Flows(context.Context) (int, error) {
	n := 0
	err := netspace.At(b.slot.netns(), func() error {
		tcp, err := sockets.TCP()
		if err != nil {
			return err
		}
		udp, err := sockets.UDP()
		if err != nil {
			return err
		}
		for _, s := range slices.Concat(tcp, udp) {
			if counts(s) {
				n++
			}
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("count the flows of %s: %w", b.slot.Instance, err)
	}
	return n, nil
}

// counts reports whether a socket has a flow. A handshake that the client has not completed holds
// nothing up.
func counts(s sockets.Socket) bool {
	return s.State != sockets.NewSynRecv && steered(s.Local.Addr())
}

// steered reports whether a socket's own address is a VIP.
func steered(a netip.Addr) bool { return pando.VIPs4.Contains(a) || pando.VIPs6.Contains(a) }
