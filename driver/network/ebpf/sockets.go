package ebpf

import (
	"net/netip"

	"pando.run/pando/driver/network/netspace"
	"pando.run/pando/driver/network/sockets"
)

// connection is one connection of an instance: its client and its own end.
type connection struct {
	protocol      uint8
	client, local netip.AddrPort
}

// openConnections lists the connections in a network namespace. It reports open TCP connections,
// with whether their handshake is done, and UDP sockets that have a peer.
func openConnections(path string) (map[connection]bool, error) {
	out := map[connection]bool{}
	return out, netspace.At(path, func() error {
		if err := listConnections(out); err != nil {
			return err
		}
		return listTranslated(out)
	})
}

func listConnections(out map[connection]bool) error {
	tcp, err := sockets.TCP()
	if err != nil {
		return err
	}
	udp, err := sockets.UDP()
	if err != nil {
		return err
	}
	for _, s := range tcp {
		out[connection{protocols["tcp"], s.Remote, s.Local}] = s.Accepted()
	}
	for _, s := range udp {
		out[connection{protocols["udp"], s.Remote, s.Local}] = true
	}
	return nil
}
