package steering

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// Packet is one packet as a row of the table describes it. Fields that a row leaves out have fixed
// values, so two packets are the same exactly if their bytes are. The zero family is that of its
// addresses.
type Packet struct {
	Protocol   layers.IPProtocol
	Src, Dst   netip.AddrPort
	Flags      string // of TCP: letters of SAFRP
	Seq, Ack   uint32
	Payload    []byte
	Type, Code uint8   // of ICMP
	Quoted     *Packet // by an ICMP error: its header and the first 8 bytes behind it
	Requoted   *Packet // the quoted packet with its new ports; its checksum is the old one
	// Extensions are kinds of IPv6 extension headers, in order. IPv4 has one options word for each.
	Extensions []byte
	// Longer is how many bytes the options of IPv6 are longer than 8, a multiple of 8.
	Longer int
	// From and To bound this fragment's part of the payload behind the network header. To 0 means
	// whole.
	From, To   int
	NoChecksum bool // of UDP over IPv4
	Sender     net.HardwareAddr
	HopLimit   uint8  // 64
	ID         uint16 // 7
	CutTo      int    // of the frame, in bytes; 0 means whole
}

func tcp(src, dst netip.AddrPort, flags string) Packet {
	return Packet{Protocol: layers.IPProtocolTCP, Src: src, Dst: dst, Flags: flags, Seq: 1000,
		Ack: map[bool]uint32{true: 500}[strings.Contains(flags, "A")]}
}

func udp(src, dst netip.AddrPort) Packet {
	return Packet{Protocol: layers.IPProtocolUDP, Src: src, Dst: dst, Payload: []byte("question")}
}

// icmp returns ICMP between IPv4 addresses and ICMPv6 between IPv6 ones. The types belong to the
// family.
// family.
func icmp(src, dst netip.Addr, kind, code uint8) Packet {
	p := Packet{Protocol: layers.IPProtocolICMPv4, Src: netip.AddrPortFrom(src, 0),
		Dst: netip.AddrPortFrom(dst, 0), Type: kind, Code: code}
	if src.Is6() {
		p.Protocol = layers.IPProtocolICMPv6
	}
	return p
}

func (p Packet) with(change func(*Packet)) Packet { change(&p); return p }

// refusal returns the packet that reports to the sender of p that the port or address is closed.
func (p Packet) refusal() Packet {
	if p.Protocol == layers.IPProtocolUDP {
		r := icmp(p.Dst.Addr(), p.Src.Addr(), 3, 3)
		if p.six() {
			r.Type, r.Code = 1, 4
		}
		r.Quoted, r.ID = &p, 0
		return r
	}
	r := tcp(p.Dst, p.Src, "R")
	r.Seq, r.Ack, r.ID = p.Ack, 0, 0
	if !strings.Contains(p.Flags, "A") {
		r.Flags, r.Seq, r.Ack = "RA", 0, p.Seq+uint32(len(p.Payload))
		if strings.ContainsAny(p.Flags, "SF") {
			r.Ack++
		}
	}
	return r
}

func (p Packet) six() bool { return p.Src.Addr().Is6() }

// Bytes returns the frame between these two stations.
func (p Packet) Bytes(from, to net.HardwareAddr) []byte {
	if p.Sender != nil {
		from = p.Sender
	}
	kind := layers.EthernetTypeIPv4
	if p.six() {
		kind = layers.EthernetTypeIPv6
	}
	out := join(&layers.Ethernet{SrcMAC: from, DstMAC: to, EthernetType: kind},
		gopacket.Payload(p.network()))
	if p.CutTo > 0 {
		return out[:p.CutTo]
	}
	return out
}

func join(l ...gopacket.SerializableLayer) []byte {
	b := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(b,
		gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, l...)
	if err != nil {
		panic(fmt.Sprintf("a packet of the table cannot be built: %v", err))
	}
	return b.Bytes()
}

func (p Packet) hops() uint8 {
	if p.HopLimit != 0 {
		return p.HopLimit
	}
	return 64
}

func (p Packet) network() []byte {
	l4 := p.transport()
	if p.To > 0 {
		l4 = l4[p.From:min(p.To, len(l4))]
	}
	if p.six() {
		ip := &layers.IPv6{Version: 6, HopLimit: p.hops(), SrcIP: p.Src.Addr().AsSlice(),
			DstIP: p.Dst.Addr().AsSlice(), NextHeader: p.Protocol}
		var chain []byte
		for n, kind := range p.Extensions {
			next := byte(p.Protocol)
			if n+1 < len(p.Extensions) {
				next = p.Extensions[n+1]
			}
			chain = append(chain, p.extension(kind, next)...)
		}
		if len(p.Extensions) > 0 {
			ip.NextHeader = layers.IPProtocol(p.Extensions[0])
		}
		return join(ip, gopacket.Payload(append(chain, l4...)))
	}
	ip := &layers.IPv4{Version: 4, TTL: p.hops(), Id: p.ID, SrcIP: p.Src.Addr().AsSlice(),
		DstIP: p.Dst.Addr().AsSlice(), Protocol: p.Protocol}
	switch {
	case p.To > 0:
		ip.FragOffset = uint16(p.From / 8)
		if p.To < len(p.transport()) {
			ip.Flags = layers.IPv4MoreFragments
		}
	default:
		ip.Flags = layers.IPv4DontFragment
	}
	for range p.Extensions {
		ip.Options = append(ip.Options, layers.IPv4Option{OptionType: 1},
			layers.IPv4Option{OptionType: 1}, layers.IPv4Option{OptionType: 1},
			layers.IPv4Option{OptionType: 1})
	}
	return join(ip, gopacket.Payload(l4))
}

const (
	hopByHop = 0
	routing  = 43
	fragment = 44
	options  = 60
)

func (p Packet) extension(kind, next byte) []byte {
	h := []byte{next, 0, 1, 4, 0, 0, 0, 0} // padding of six bytes
	switch kind {
	case hopByHop, options:
		h[1] = byte(p.Longer / 8)
		for left := p.Longer; left > 0; {
			pad := make([]byte, min(left, 256)) // a padding has its kind, its length, and zeros
			pad[0], pad[1] = 1, byte(len(pad)-2)
			h, left = append(h, pad...), left-len(pad)
		}
	case routing:
		h[2], h[3] = 0, 1 // a segment is left
	case fragment:
		h[1] = 0
		more := uint16(0)
		if p.To > 0 && p.To < len(p.transport()) {
			more = 1
		}
		binary.BigEndian.PutUint16(h[2:], uint16(p.From)|more)
		binary.BigEndian.PutUint32(h[4:], uint32(p.ID))
	}
	return h
}

// transport returns everything behind the network header and its extensions.
func (p Packet) transport() []byte {
	var ip gopacket.NetworkLayer = &layers.IPv4{
		SrcIP: p.Src.Addr().AsSlice(), DstIP: p.Dst.Addr().AsSlice(), Protocol: p.Protocol,
	}
	if p.six() {
		ip = &layers.IPv6{
			SrcIP: p.Src.Addr().AsSlice(), DstIP: p.Dst.Addr().AsSlice(), NextHeader: p.Protocol,
		}
	}
	payload := gopacket.Payload(p.Payload)
	switch p.Protocol {
	case layers.IPProtocolTCP:
		t := &layers.TCP{SrcPort: layers.TCPPort(p.Src.Port()), DstPort: layers.TCPPort(p.Dst.Port()),
			Seq: p.Seq, Ack: p.Ack}
		t.SYN, t.ACK, t.FIN = strings.Contains(p.Flags, "S"), strings.Contains(p.Flags,
			"A"), strings.Contains(p.Flags, "F")
		t.RST, t.PSH = strings.Contains(p.Flags, "R"), strings.Contains(p.Flags, "P")
		if !t.RST {
			t.Window = 1024
		}
		_ = t.SetNetworkLayerForChecksum(ip)
		return join(t, payload)
	case layers.IPProtocolUDP:
		u := &layers.UDP{SrcPort: layers.UDPPort(p.Src.Port()), DstPort: layers.UDPPort(p.Dst.Port())}
		_ = u.SetNetworkLayerForChecksum(ip)
		b := join(u, payload)
		if p.NoChecksum {
			b[6], b[7] = 0, 0
		}
		return b
	case layers.IPProtocolICMPv6:
		i := &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(p.Type, p.Code)}
		_ = i.SetNetworkLayerForChecksum(ip)
		return join(i, gopacket.Payload(append(make([]byte, 4), p.body()...)))
	case layers.IPProtocolICMPv4:
		return join(&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(p.Type, p.Code)},
			gopacket.Payload(p.body()))
	}
	return p.Payload
}

// body returns the content of an ICMP message behind its 8 bytes.
func (p Packet) body() []byte {
	if p.Quoted == nil {
		return p.Payload
	}
	whole := p.Quoted.network()
	l4 := len(whole) - len(p.Quoted.transport())
	quote := append([]byte(nil), whole[:l4+8]...)
	if p.Requoted != nil {
		binary.BigEndian.PutUint16(quote[l4:], p.Requoted.Src.Port())
		binary.BigEndian.PutUint16(quote[l4+2:], p.Requoted.Dst.Port())
	}
	return quote
}

// describe returns a readable form of a frame, for a comparison of two frames.
func describe(frame []byte) string {
	return fmt.Sprintf("%x\n%s",
		frame, gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.NoCopy))
}
