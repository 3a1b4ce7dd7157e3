package arp

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// The offsets of the fields in a frame: ARP (RFC 826) and neighbour discovery (RFC 4861 §4).
const (
	macBytes   = 6
	etherBytes = 14

	arpOperation = etherBytes + 6
	arpSender    = etherBytes + 8 // MAC, then IP
	arpTarget    = etherBytes + 18
	arpBytes     = etherBytes + 28
	arpRequest   = 1
	arpReply     = 2

	ip6Payload   = etherBytes + 4
	ip6Next      = etherBytes + 6
	ip6Hops      = etherBytes + 7
	ip6Source    = etherBytes + 8
	ip6To        = etherBytes + 24
	ip6Bytes     = 40
	ndType       = etherBytes + ip6Bytes
	ndSum        = ndType + 2
	ndFlags      = ndType + 4
	ndTarget     = ndType + 8
	ndOption     = ndType + 24
	ndBytes      = 32
	solicitation = 135
	advertised   = 136
	hopsOnLink   = 255 // no router has forwarded the packet

	isSolicited, isNewer = 0x40, 0x20 // flags of an advertisement
	targetMAC            = 2          // an option
)

var (
	everyone    = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	allNodes    = netip.MustParseAddr("ff02::1")
	allNodesMAC = net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}
)

// request is a question for the MAC of a VIP.
type request struct {
	vip, from netip.Addr // from is unspecified if the asker looks for another owner of the address
	mac       net.HardwareAddr
}

// read reads a request. Announcements of other hosts and cut frames are none.
func read(f []byte) (q request, ok bool) {
	if len(f) < arpBytes {
		return q, false
	}
	q.mac = slices.Clone(f[macBytes : 2*macBytes])
	switch binary.BigEndian.Uint16(f[2*macBytes:]) {
	case unix.ETH_P_ARP:
		q.from = netip.AddrFrom4([4]byte(f[arpSender+macBytes:]))
		q.vip = netip.AddrFrom4([4]byte(f[arpTarget+macBytes:]))
		if binary.BigEndian.Uint16(f[arpOperation:]) != arpRequest {
			return q, false
		}
	case unix.ETH_P_IPV6:
		if len(f) < ndOption || f[ip6Next] != unix.IPPROTO_ICMPV6 || f[ndType] != solicitation ||
			f[ip6Hops] != hopsOnLink {
			return q, false
		}
		q.from = netip.AddrFrom16([16]byte(f[ip6Source:]))
		q.vip = netip.AddrFrom16([16]byte(f[ndTarget:]))
	default:
		return q, false
	}
	return q, q.from != q.vip
}

// reply returns the frame that answers a request.
func (q request) reply(own net.HardwareAddr) []byte {
	if q.vip.Is4() {
		return arp(arpReply, q.mac, q.mac, own, q.vip, q.from)
	}
	if q.from.IsUnspecified() {
		return advertisement(allNodesMAC, own, q.vip, allNodes, isNewer)
	}
	return advertisement(q.mac, own, q.vip, q.from, isNewer|isSolicited)
}

// announcement returns the frame that gives a VIP to this host on the whole network.
func announcement(vip netip.Addr, own net.HardwareAddr) []byte {
	if vip.Is4() { // a request: RFC 5227 §3
		return arp(arpRequest, everyone, make(net.HardwareAddr, macBytes), own, vip, vip)
	}
	return advertisement(allNodesMAC, own, vip, allNodes, isNewer)
}

func ether(to, from net.HardwareAddr, protocol uint16, length int) []byte {
	f := make([]byte, length)
	copy(f, to)
	copy(f[macBytes:], from)
	binary.BigEndian.PutUint16(f[2*macBytes:], protocol)
	return f
}

func arp(operation uint16, to, target, own net.HardwareAddr, sender, asked netip.Addr) []byte {
	f := ether(to, own, unix.ETH_P_ARP, arpBytes)
	copy(f[etherBytes:], []byte{0, 1, 8, 0, macBytes, 4}) // Ethernet, IPv4
	binary.BigEndian.PutUint16(f[arpOperation:], operation)
	copy(f[arpSender:], append(slices.Clone(own), sender.AsSlice()...))
	copy(f[arpTarget:], append(slices.Clone(target), asked.AsSlice()...))
	return f
}

func advertisement(to, own net.HardwareAddr, vip, receiver netip.Addr, flags byte) []byte {
	f := ether(to, own, unix.ETH_P_IPV6, etherBytes+ip6Bytes+ndBytes)
	f[etherBytes] = 0x60
	f[ip6Payload+1], f[ip6Next], f[ip6Hops] = ndBytes, unix.IPPROTO_ICMPV6, hopsOnLink
	copy(f[ip6Source:], vip.AsSlice())
	copy(f[ip6To:], receiver.AsSlice())
	f[ndType], f[ndFlags] = advertised, flags
	copy(f[ndTarget:], vip.AsSlice())
	f[ndOption], f[ndOption+1] = targetMAC, 1
	copy(f[ndOption+2:], own)
	binary.BigEndian.PutUint16(f[ndSum:], checksum(f))
	return f
}

// checksum returns the sum of an ICMPv6 message with its pseudo header (RFC 8200 §8.1).
func checksum(f []byte) uint16 {
	sum := uint32(ndBytes + unix.IPPROTO_ICMPV6)
	for at := ip6Source; at < len(f); at += 2 {
		sum += uint32(binary.BigEndian.Uint16(f[at:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// filterOf returns the kernel's filter for requests of one protocol: those for VIPs.
func filterOf(protocol uint16) ([]unix.SockFilter, error) {
	word := func(b []byte) uint32 { return binary.BigEndian.Uint32(b) }
	var tests []bpf.Instruction // each load is followed by its test
	is := func(at, bytes uint32, v uint32) {
		tests = append(tests, bpf.LoadAbsolute{Off: at, Size: int(bytes)},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: v})
	}
	if protocol == unix.ETH_P_ARP {
		net4 := pando.VIPs4.Addr().AsSlice()
		is(arpOperation, 2, arpRequest)
		is(arpTarget+macBytes, 2, word(net4)>>16)
	} else {
		net6 := pando.VIPs6.Addr().AsSlice()
		is(ip6Next, 1, unix.IPPROTO_ICMPV6)
		is(ndType, 1, solicitation)
		is(ndTarget, 4, word(net6))
		is(ndTarget+4, 4, word(net6[4:]))
	}
	for n := 1; n < len(tests); n += 2 {
		j := tests[n].(bpf.JumpIf)
		j.SkipFalse = uint8(len(tests) - n) // to the last instruction, which drops
		tests[n] = j
	}
	raw, err := bpf.Assemble(append(tests, bpf.RetConstant{Val: frameMax}, bpf.RetConstant{}))
	if err != nil {
		return nil, err
	}
	out := make([]unix.SockFilter, 0, len(raw))
	for _, i := range raw {
		out = append(out, unix.SockFilter{Code: i.Op, Jt: i.Jt, Jf: i.Jf, K: i.K})
	}
	return out, nil
}
