package firewall

import (
	"encoding/binary"
	"net/netip"
)

// words returns an address as the program reads it from a packet. IPv4 has the first word only.
func words(a netip.Addr) (out [4]uint32) {
	for n, b := 0, a.AsSlice(); n < len(b)/4; n++ {
		out[n] = binary.NativeEndian.Uint32(b[4*n:])
	}
	return out
}

// key returns an address as a key of the table of owners: IPv4 as ::ffff:a.b.c.d.
func key(a netip.Addr) [4]uint32 { return words(netip.AddrFrom16(a.As16())) }

// mask returns the mask of an IPv4 range in the order of packets.
func mask(bits int) uint32 {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], ^uint32(0)<<(32-bits))
	return binary.NativeEndian.Uint32(b[:])
}

// network returns a port in the order of packets.
func network(port uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], port)
	return binary.NativeEndian.Uint16(b[:])
}
