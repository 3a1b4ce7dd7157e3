package front

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

var protocols = map[pando.Protocol]uint8{pando.TCP: unix.IPPROTO_TCP, pando.UDP: unix.IPPROTO_UDP}

// words returns an address as the programs read it from a packet. IPv4 has the first word only, and
// an invalid address is zero.
func words(a netip.Addr) (out [4]uint32) {
	for n, b := 0, a.AsSlice(); n < len(b)/4; n++ {
		out[n] = binary.NativeEndian.Uint32(b[4*n:])
	}
	return out
}

// mask returns the mask of an IPv4 range in the order of packets.
func mask(bits int) uint32 {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], ^uint32(0)<<(32-bits))
	return binary.NativeEndian.Uint32(b[:])
}

// network returns a port in the order of packets, and the other way round.
func network(port uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], port)
	return binary.NativeEndian.Uint16(b[:])
}

// ownOf returns the addresses of a host by family. The published address may be one of IPv6.
func ownOf(a, six netip.Addr) (out frontOwn) {
	for _, a := range []netip.Addr{six, a} {
		switch {
		case a.Is4():
			out.Addr[0] = words(a)
		case a.Is6():
			out.Addr[1] = words(a)
		}
	}
	return out
}

func keyOf(p pando.HostPort) frontHostPort {
	return frontHostPort{Port: network(p.Port), Protocol: protocols[p.Protocol]}
}

func portOf(k frontHostPort) pando.HostPort {
	p := pando.HostPort{Port: network(k.Port), Protocol: pando.TCP}
	if k.Protocol == protocols[pando.UDP] {
		p.Protocol = pando.UDP
	}
	return p
}
