package ebpf

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"unsafe"

	"pando.run/pando"
)

// native returns an IPv4 address as the kernel's programs compare it: its bytes in network order,
// read as a native number.
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

// words returns an address as the tables for both families store it (bpf/pando.h). An invalid
// address is all zero.
func words(a netip.Addr) (w [4]uint32) {
	if !a.IsValid() {
		return w
	}
	b := a.As16()
	for n := range w {
		w[n] = binary.NativeEndian.Uint32(b[4*n:])
	}
	return w
}

func address6(w [4]uint32) netip.Addr {
	var b [16]byte
	for n := range w {
		binary.NativeEndian.PutUint32(b[4*n:], w[n])
	}
	return netip.AddrFrom16(b).Unmap()
}

func mask(bits uint32) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], bits)
	return netip.AddrFrom4(b)
}

// network converts a port to network order, or back: it is its own inverse.
func network(port uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], port)
	return binary.NativeEndian.Uint16(b[:])
}

func textOf(n steerName) string {
	b := *(*[len(n.Text)]byte)(unsafe.Pointer(&n.Text))
	text, _, _ := bytes.Cut(b[:], []byte{0})
	return string(text)
}

func nameOf(service uint32, s string) steerName {
	n := steerName{Service: service, Used: 1}
	for i := range min(len(s), len(n.Text)-1) {
		n.Text[i] = int8(s[i])
	}
	return n
}

// linkOf returns the table entry of an instance's link.
func linkOf(l pando.Link, vip4, vip6 netip.Addr) steerInstanceLink {
	var v steerInstanceLink
	v.Addr[0][0], v.Addr[1] = native(l.IP4), words(l.IP6)
	v.Vip[0][0], v.Vip[1] = native(vip4), words(vip6)
	copy(v.Mac[:], l.MAC)
	return v
}
