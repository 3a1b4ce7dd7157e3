package ebpf

import "pando.run/pando"

// Stack is the network stack of a host, for a driver that steers by other means. It makes no
// program.
type Stack struct{ Config }

// Ready gives pando0 its addresses and the routes to VIPs, and makes the host forward. The device
// may be of any kind.
func (s Stack) Ready() error {
	_, err := ensureDevice(s.Config)
	return err
}

// Connections lists the connections in a network namespace, and whether the handshake of each is
// done.
func (s Stack) Connections(netns string) (map[pando.Connection]bool, error) {
	all, err := openConnections(netns)
	if err != nil {
		return nil, err
	}
	out := make(map[pando.Connection]bool, len(all))
	for c, done := range all {
		p := pando.TCP
		if c.protocol == protocols[pando.UDP] {
			p = pando.UDP
		}
		out[pando.Connection{Protocol: p, Client: c.client, Local: c.local}] = done
	}
	return out, nil
}
