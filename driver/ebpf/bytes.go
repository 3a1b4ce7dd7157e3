package ebpf

import (
	"encoding/binary"
	"net/netip"
)

// native is an IPv4 address as the kernel's programs compare it: its bytes in network order, read as a native number.
func native(a netip.Addr) uint32 {
	if !a.Is4() {
		return 0
	}
	b := a.As4()
	return binary.NativeEndian.Uint32(b[:])
}

func address(n uint32) netip.Addr {
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], n)
	return netip.AddrFrom4(b)
}

func mask(bits uint32) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], bits)
	return netip.AddrFrom4(b)
}

// network is a port with its bytes in network order; it is its own inverse.
func network(port uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], port)
	return binary.NativeEndian.Uint16(b[:])
}
