package steering

import (
	"net"
	"net/netip"

	"github.com/gopacket/gopacket/layers"

	"pando.run/pando"
)

// caseOf has the addresses of a row in one family. Every flow of the table has a port of its own.
type caseOf struct {
	six        int
	client     netip.Addr
	vip, other netip.Addr
	none       netip.Addr
	a, b       netip.Addr
	nextPort   *uint16
}

func caseFor(six int, s *stand) caseOf {
	port := uint16(20000)
	return caseOf{six: six, client: far[six], vip: vip[six], other: other[six], none: none[six],
		a: s.addr["a"][six], b: s.addr["b"][six], nextPort: &port}
}

func at(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }

// port returns a client's address with a port that no other row has.
func (c caseOf) port() netip.AddrPort {
	*c.nextPort++
	return at(c.client, *c.nextPort)
}

// target returns a packet to the VIP with the port at which the instance listens.
func target(p Packet, port uint16) Packet {
	p.Dst = at(p.Dst.Addr(), port)
	return p
}

func published(p Packet, port uint16) Packet {
	p.Src = at(p.Src.Addr(), port)
	return p
}

// steered has the ordinary way of a flow, and back.
func steered(c caseOf) map[string][]row {
	client, reused, translated, host := c.port(), c.port(), c.port(), c.port()
	again := tcp(c.port(), at(c.vip, 80), "S")
	syn := tcp(client, at(c.vip, 80), "S")
	data := tcp(client, at(c.vip, 80), "PA").with(func(p *Packet) { p.Payload = []byte("GET /") })
	ask := udp(client, at(c.vip, 53))
	east := tcp(at(c.b, 4000), at(c.vip, 80), "S")
	return map[string][]row{
		"a flow of TCP": {
			{at: Outside, in: syn, to: "a", out: target(syn, 8080), first: true},
			{at: "a", in: tcp(at(c.vip, 8080), client, "SA"), to: "on",
				out: tcp(at(c.vip, 80), client, "SA")},
			{at: Outside, in: data, to: "a", out: target(data, 8080)},
			{at: "a", in: tcp(at(c.vip, 8080), client, "FA"), to: "on",
				out: tcp(at(c.vip, 80), client, "FA")},
			{at: Outside, in: tcp(client, at(c.vip, 80), "R"), to: "a",
				out: tcp(client, at(c.vip, 8080), "R")},
		},
		"a retransmission opens no flow": {
			{at: Outside, in: again, to: "a", out: target(again, 8080), first: true},
			{at: Outside, in: again, to: "a", out: target(again, 8080)},
		},
		"ports used again open a new flow": {
			{at: Outside, in: tcp(reused, at(c.vip, 80), "S"), to: "a",
				out: tcp(reused, at(c.vip, 8080), "S"), first: true},
			{at: Outside, in: tcp(reused, at(c.vip, 80), "A"), to: "a",
				out: tcp(reused, at(c.vip, 8080), "A")},
			{at: Outside, in: tcp(reused, at(c.vip, 80), "S"), to: "a",
				out: tcp(reused, at(c.vip, 8080), "S"), first: true},
		},
		"a port that is not translated": {
			{at: Outside, in: tcp(translated, at(c.vip, 443), "S"), to: "a",
				out: tcp(translated, at(c.vip, 443), "S"), first: true},
			{at: "a", in: tcp(at(c.vip, 443), translated, "SA"), to: "on",
				out: tcp(at(c.vip, 443), translated, "SA")},
		},
		"a flow begins on the host": {
			{at: Host, in: tcp(host, at(c.vip, 80), "S"), to: "a", out: tcp(host, at(c.vip, 8080), "S"),
				first: true},
		},
		"an instance is a client": {
			{at: "b", in: east, to: "a", out: target(east, 8080), first: true},
			{at: "b", in: target(east, 81).with(func(p *Packet) { p.Flags = "S" }), to: "back",
				out: target(east, 81).refusal(), why: pando.DroppedNoService},
		},
		"UDP, from a server that answers as the VIP": {
			{at: Outside, in: ask, to: "a", out: target(ask, 5353), first: true},
			{at: Outside, in: ask, to: "a", out: target(ask, 5353)},
			{at: "a", in: udp(at(c.vip, 5353), client), to: "on", out: udp(at(c.vip, 53), client)},
		},
		"UDP, from a server that is bound to every address": {
			{at: Outside, in: udp(reused, at(c.vip, 53)), to: "a", out: udp(reused, at(c.vip, 5353)),
				first: true},
			{at: "a", in: udp(at(c.a, 5353), reused), to: "on", out: udp(at(c.vip, 53), reused)},
			// This client did not ask the VIP.
			{at: "a", in: udp(at(c.a, 5353), c.port()), to: "on",
				out: udp(at(c.a, 5353), at(c.client, *c.nextPort))},
			{at: "a", in: udp(at(c.a, 999), reused), to: "on", out: udp(at(c.a, 999), reused)},
			{at: Outside, in: udp(reused, at(c.vip, 123)), to: "a", out: udp(reused, at(c.vip, 123)),
				first: true},
			{at: "a", in: udp(at(c.a, 123), reused), to: "on", out: udp(at(c.vip, 123), reused)},
		},
		"what is not for a VIP goes its way": {
			{at: Outside, in: tcp(client, at(c.a, 8080), "S"), to: "on",
				out: tcp(client, at(c.a, 8080), "S")},
			{at: "a", in: tcp(at(c.a, 8080), client, "SA"), to: "on", out: tcp(at(c.a, 8080), client, "SA")},
			{at: "a", in: icmp(c.a, c.client, 8, 0), to: "on", out: icmp(c.a, c.client, 8, 0)},
		},
	}
}

// refused has packets without a receiver. Their senders get a refusal.
func refused(c caseOf) map[string][]row {
	refuse := func(where Place, p Packet, why pando.DropReason) row {
		return row{at: where, in: p, to: "back", out: p.refusal(), why: why}
	}
	fin := tcp(c.port(), at(c.vip, 81), "F").with(func(p *Packet) { p.Payload = []byte("late") })
	ack := tcp(c.port(), at(c.vip, 81), "A").with(func(p *Packet) { p.Payload = make([]byte, 1000) })
	lost := tcp(c.port(), at(c.vip, 80), "A")
	return map[string][]row{
		"a closed port": {
			refuse(Outside, tcp(c.port(), at(c.vip, 81), "S"), pando.DroppedNoService),
			refuse(Outside, fin, pando.DroppedNoService),
			refuse(Outside, ack, pando.DroppedNoService),
			refuse(Host, tcp(c.port(), at(c.vip, 81), "S"), pando.DroppedNoService),
			refuse(Host, udp(c.port(), at(c.vip, 54)), pando.DroppedNoService),
			refuse(Outside, udp(c.port(), at(c.vip, 54)), pando.DroppedNoService),
			// An answer to a reset would make two stacks answer each other for ever.
			{at: Outside, in: tcp(c.port(), at(c.vip, 81), "R"), why: pando.DroppedNoService},
		},
		"an unused address": {
			refuse(Outside, tcp(c.port(), at(c.none, 80), "S"), pando.DroppedNoService),
			refuse(Outside, udp(c.port(), at(c.none, 53)), pando.DroppedNoService),
			// The flow may be about to move here.
			{at: Outside, in: tcp(c.port(), at(c.none, 80), "A"), why: pando.DroppedNoService},
		},
		"a service without an endpoint": {
			refuse(Outside, tcp(c.port(), at(c.other, 80), "S"), pando.DroppedNoEndpoint),
			refuse(Outside, tcp(c.port(), at(c.other, 80), "A"), pando.DroppedNoFlow),
			refuse(Outside, udp(c.port(), at(c.other, 53)), pando.DroppedNoEndpoint),
		},
		"a connection that the table has lost goes where the table says": {
			{at: Outside, in: lost, to: "a", out: target(lost, 8080)},
		},
	}
}

// unusual has unusual headers and other packets to a VIP.
func unusual(c caseOf) map[string][]row {
	client, other := c.port(), c.port()
	syn := func(with ...byte) Packet {
		return tcp(client, at(c.vip, 80), "S").with(func(p *Packet) { p.Extensions = with })
	}
	unread := func(with ...byte) Packet {
		return tcp(other, at(c.vip, 80), "S").with(func(p *Packet) { p.Extensions = with })
	}
	long := func(bytes int) Packet {
		return syn(hopByHop, options).with(func(p *Packet) { p.Longer = bytes / 2 })
	}
	gre := Packet{Protocol: layers.IPProtocolGRE, Src: at(c.client, 0), Dst: at(c.vip, 0),
		Payload: make([]byte, 20)}
	short := tcp(c.port(), at(c.vip, 80), "S")
	short.CutTo = 14 + map[int]int{0: 20, 1: 40}[c.six] + 10
	known := []row{
		{at: Outside, in: syn(options), to: "a", out: target(syn(options), 8080), first: true},
		{at: Outside, in: syn(options, options), to: "a", out: target(syn(options, options), 8080)},
	}
	rows := map[string][]row{
		"options are read over": known,
		"another protocol":      {{at: Outside, in: gre, why: pando.DroppedProtocol}},
		"a header cut short":    {{at: Outside, in: short, why: pando.DroppedHeader}},
		"ping": {
			{at: Outside, in: c.ping(c.vip), to: "back", out: c.pong(c.vip)},
			{at: Host, in: c.ping(c.vip), to: "back", out: c.pong(c.vip)},
			{at: Outside, in: c.ping(c.none), why: pando.DroppedNoService},
		},
		"ICMP that is neither an echo nor an error": {{at: Outside,
			in: icmp(c.client, c.vip, []uint8{13, 130}[c.six], 0), why: pando.DroppedProtocol}},
	}
	if c.six == 1 {
		rows["options are read over"] = append(known,
			row{at: Outside, in: syn(hopByHop, options), to: "a", out: target(syn(hopByHop, options), 8080)},
			row{at: Outside, in: long(1024), to: "a", out: target(long(1024), 8080)},
			// This is an atomic fragment (RFC 6946).
			row{at: Outside, in: syn(fragment), to: "a", out: target(syn(fragment), 8080)})
		rows["extensions that cannot be read"] = []row{
			{at: Outside, in: unread(routing), why: pando.DroppedProtocol},
			{at: Outside, in: unread(hopByHop, options, options, options, options),
				why: pando.DroppedHeader},
		}
	}
	return rows
}

func (c caseOf) ping(to netip.Addr) Packet {
	return icmp(c.client, to, []uint8{8, 128}[c.six],
		0).with(func(p *Packet) { p.Payload = []byte("are you there?") })
}

func (c caseOf) pong(from netip.Addr) Packet {
	return icmp(from, c.client, []uint8{0, 129}[c.six],
		0).with(func(p *Packet) { p.Payload = []byte("are you there?") })
}

// pieces has datagrams that do not fit into one packet.
func pieces(c caseOf) map[string][]row {
	client, second := c.port(), c.port()
	piece := func(src, dst netip.AddrPort, id uint16, from, to int) Packet {
		p := udp(src, dst)
		p.Payload, p.ID, p.From, p.To = make([]byte, 2000), id, from, to
		if c.six == 1 {
			p.Extensions = []byte{fragment}
		}
		return p
	}
	ask := func(id uint16, from, to int) Packet { return piece(client, at(c.vip, 53), id, from, to) }
	// The second piece stays unchanged. The first changes its port and its checksum, which the table
	// computes over the whole.
	asked := func(id uint16, from, to int) Packet {
		return piece(client, at(c.vip, 5353), id, from, to)
	}
	say := func(src netip.AddrPort, from, to int) Packet { return piece(src, client, 77, from, to) }
	return map[string][]row{
		"the pieces of a datagram follow the first": {
			{at: Outside, in: ask(41, 0, 1208), to: "a", out: asked(41, 0, 1208), first: true},
			{at: Outside, in: ask(41, 1208, 2008), to: "a", out: asked(41, 1208, 2008)},
			{at: Outside, in: ask(42, 1208, 2008), why: pando.DroppedFragment},
			{at: "a", in: say(at(c.a, 5353), 0, 1208), to: "on", out: say(at(c.vip, 53), 0, 1208)},
			{at: "a", in: say(at(c.a, 5353), 1208, 2008), to: "on", out: say(at(c.vip, 53), 1208, 2008)},
		},
		"pieces from a server that answers as the VIP": {
			{at: Outside, in: piece(second, at(c.vip, 53), 43, 0, 1208), to: "a",
				out: piece(second, at(c.vip, 5353), 43, 0, 1208), first: true},
			{at: "a", in: piece(at(c.vip, 5353), second, 78, 0, 1208), to: "on",
				out: piece(at(c.vip, 53), second, 78, 0, 1208)},
			{at: "a", in: piece(at(c.vip, 5353), second, 78, 1208, 2008), to: "on",
				out: piece(at(c.vip, 53), second, 78, 1208, 2008)},
		},
		"a ping in pieces": {{at: Outside,
			why: pando.DroppedFragment, in: c.ping(c.vip).with(func(p *Packet) {
				p.Payload, p.To = make([]byte, 2000), 1208
				if c.six == 1 {
					p.Extensions = []byte{fragment}
				}
			})}},
	}
}

// complaints has the ICMP errors that the network or an instance sends about a packet.
func complaints(c caseOf) map[string][]row {
	client, router := c.port(), []netip.Addr{netip.MustParseAddr("198.51.100.9"),
		netip.MustParseAddr("2001:db8:9::1")}[c.six]
	kinds := [][2]uint8{{3, 4}, {3, 1}, {11, 0}}
	if c.six == 1 {
		kinds = [][2]uint8{{2, 0}, {1, 0}, {3, 0}}
	}
	sent, sentUDP := tcp(at(c.vip, 80), client, "A"), udp(at(c.vip, 53), client)
	tell := func(k [2]uint8, of, became Packet) (in, out Packet) {
		in = icmp(router, c.vip, k[0], k[1])
		in.Quoted = &of
		out = in
		out.Requoted = &became
		return in, out
	}
	rows := []row{
		{at: Outside, in: tcp(client, at(c.vip, 80), "S"), to: "a",
			out: tcp(client, at(c.vip, 8080), "S"), first: true},
		{at: Outside, in: udp(client, at(c.vip, 53)), to: "a", out: udp(client, at(c.vip, 5353)),
			first: true},
	}
	for _, k := range kinds {
		in, out := tell(k, sent, published(sent, 8080))
		rows = append(rows, row{at: Outside, in: in, to: "a", out: out})
		in, out = tell(k, sentUDP, published(sentUDP, 5353))
		rows = append(rows, row{at: Outside, in: in, to: "a", out: out},
			row{at: Host, in: in, to: "a", out: out})
	}
	strange, _ := tell(kinds[0], tcp(at(c.vip, 80), at(c.client, 9), "A"), Packet{})
	foreign, _ := tell(kinds[0], tcp(at(c.none, 80), client, "A"), Packet{})
	mute := icmp(router, c.vip, kinds[0][0], kinds[0][1])
	asked := udp(client, at(c.vip, 5353))
	said := icmp(c.vip, c.client, []uint8{3, 1}[c.six], []uint8{3, 4}[c.six])
	said.Quoted = &asked
	saying := said
	requoted := udp(client, at(c.vip, 53))
	saying.Requoted = &requoted
	return map[string][]row{
		"an error reaches the sender of the quoted packet": rows,

		"an error about no flow":           {{at: Outside, in: strange, why: pando.DroppedNoFlow}},
		"an error about another's packet":  {{at: Outside, in: foreign, why: pando.DroppedHeader}},
		"an error that quotes nothing":     {{at: Outside, in: mute, why: pando.DroppedHeader}},
		"an instance complains as its VIP": {{at: "a", in: said, to: "on", out: saying}},
		"an instance pings as its VIP": {{at: "a",
			in: icmp(c.vip, c.client, []uint8{8, 128}[c.six], 0), why: pando.DroppedSpoofed}},
	}
}

// own has the packets that an instance may send: as itself, and from its service's ports as its
// VIP.
func own(c caseOf) map[string][]row {
	spoofed := func(p Packet) row { return row{at: "a", in: p, why: pando.DroppedSpoofed} }
	wrongMAC := tcp(at(c.a, 8080), c.port(), "A")
	wrongMAC.Sender = net.HardwareAddr{2, 0, 0, 0, 0, 99}
	rows := map[string][]row{
		"what an instance may not say": {
			spoofed(tcp(at(c.b, 8080), c.port(), "A")),
			spoofed(tcp(at(c.client, 8080), at(c.b, 80), "S")),
			spoofed(tcp(at(c.vip, 7777), c.port(), "A")), // the VIP, but no port of the service
			spoofed(tcp(at(c.other, 80), c.port(), "A")), // another service's VIP
			spoofed(tcp(at(c.vip, 8080), at(c.other, 80), "S")),
			spoofed(udp(at(c.b, 5353), c.port())),
			spoofed(wrongMAC),
			spoofed(Packet{Protocol: layers.IPProtocolGRE, Src: at(c.vip, 0), Dst: at(c.client, 0),
				Payload: make([]byte, 20)}),
		},
	}
	if c.six == 1 {
		local, all := netip.MustParseAddr("fe80::5"), netip.MustParseAddr("ff02::1")
		rows["what an IPv6 stack says about itself"] = []row{
			{at: "a", in: icmp(local, all, 135, 0), to: "on", out: icmp(local, all, 135, 0)},
			{at: "a", in: icmp(local, all, 133, 0), why: pando.DroppedChatter},
			{at: "a", in: icmp(netip.IPv6Unspecified(), all, 143, 0), why: pando.DroppedChatter},
			spoofed(icmp(local, all, 134, 0)), // it is no router
			spoofed(icmp(c.a, all, 137, 0)),
		}
	}
	return rows
}
