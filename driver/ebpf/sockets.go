package ebpf

import (
	"net/netip"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
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
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine: it never leaves the namespace
		done <- func() error {
			ns, err := netns.GetFromPath(path)
			if err != nil {
				return err
			}
			defer ns.Close()
			if err := netns.Set(ns); err != nil {
				return err
			}
			for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
				if err := listConnections(family, out); err != nil {
					return err
				}
			}
			return listTranslated(out)
		}()
	}()
	return out, <-done
}

func listConnections(family uint8, out map[connection]bool) error {
	tcp, err := netlink.SocketDiagTCP(family)
	if err != nil {
		return err
	}
	udp, err := netlink.SocketDiagUDP(family)
	if err != nil {
		return err
	}
	for _, s := range tcp {
		switch s.State {
		case netlink.TCP_TIME_WAIT, netlink.TCP_CLOSE, netlink.TCP_LISTEN, netlink.TCP_SYN_SENT:
		default:
			out[connectionOf(protocols["tcp"], s.ID)] = s.State != netlink.TCP_SYN_RECV &&
				s.State != tcpNewSynRecv
		}
	}
	for _, s := range udp {
		if s.ID.DestinationPort != 0 {
			out[connectionOf(protocols["udp"], s.ID)] = true
		}
	}
	return nil
}

const tcpNewSynRecv = 12 // TCP_NEW_SYN_RECV of the kernel's net/tcp_states.h

func connectionOf(protocol uint8, id netlink.SocketID) connection {
	end := func(ip []byte, port uint16) netip.AddrPort {
		a, _ := netip.AddrFromSlice(ip)
		return netip.AddrPortFrom(a.Unmap(), port)
	}
	return connection{protocol, end(id.Destination, id.DestinationPort), end(id.Source, id.SourcePort)}
}
