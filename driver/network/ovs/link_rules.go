package ovs

import (
	"encoding/hex"
	"fmt"
	"net/netip"

	"pando.run/pando"
)

// plug is an instance at a port of the bridge.
type plug struct {
	Link       pando.Link
	Ports      []pando.Port
	VIP4, VIP6 netip.Addr
	Port       uint16
}

// rules returns the rules of one instance, for its own packets and for packets to it.
func (p plug) rules(m Mode) rules {
	r := rules{}
	base := cookie(kindBase, 0)
	in := fmt.Sprintf("in_port=%d", p.Port)
	from := fmt.Sprintf("%s,dl_src=%s", in, p.Link.MAC)
	r.add(tableAdmit, 100, in, base, to(tableGuard))
	for _, f := range families {
		if own := f.of(p.Link.IP4, p.Link.IP6); own.IsValid() {
			r.add(tableGuard, 50, fmt.Sprintf("%s,%s,%s=%s", from, f.ip, f.src, own), base, to(tableOut))
			r.add(tableGuard, 51, fmt.Sprintf("%s,%s,%s=%s", from, f.udp, f.src, own), base,
				resubmit(tableAnswer), to(tableOut))
		}
		if vip := f.of(p.VIP4, p.VIP6); vip.IsValid() {
			p.speaks(r, f, vip, from)
			p.receives(r, f, vip, m)
		}
	}
	for kind, action := range map[int]string{135: to(tableOut), 136: to(tableOut)} {
		r.add(tableGuard, 40, fmt.Sprintf("%s,icmp6,ipv6_src=fe80::/10,icmpv6_type=%d", from, kind), base,
			action)
	}
	for _, router := range []int{134, 137} {
		r.drop(tableGuard, 55, fmt.Sprintf("%s,icmp6,icmpv6_type=%d", from, router), pando.DroppedSpoofed)
	}
	for _, chatter := range []string{
		"ipv6_src=fe80::/10,icmpv6_type=133", "ipv6_src=fe80::/10,icmpv6_type=143",
		"ipv6_src=::,icmpv6_type=143", "ipv6_src=::,icmpv6_type=133", "ipv6_src=::,icmpv6_type=135",
	} {
		r.drop(tableGuard, 41, fmt.Sprintf("%s,icmp6,%s", from, chatter), pando.DroppedChatter)
	}
	p.deliver(r)
	return r
}

// speaks adds the packets that the instance may send as its VIP: from the ports of its service, and
// errors.
func (p plug) speaks(r rules, f family, vip netip.Addr, from string) {
	as := fmt.Sprintf("%s=%s", f.src, vip)
	ends := cookie(kindEnd, uint32(p.Port))
	for _, port := range p.Ports {
		match := fmt.Sprintf("%s,%s,%s,tp_src=%d", from, f.protocol(port.Protocol), as, port.Target)
		var translate []string
		if port.Published != port.Target {
			translate = []string{fmt.Sprintf("set_field:%d->%s_src", port.Published, port.Protocol)}
		}
		actions := append(translate, to(tableOut))
		r.add(tableGuard, 60, match, cookie(kindBase, 0), actions...)
		if port.Protocol == pando.TCP {
			r.add(tableGuard, 61, match+",tcp_flags=+fin", ends, actions...)
			r.add(tableGuard, 62, match+",tcp_flags=+rst", ends, actions...)
		}
	}
	for _, kind := range f.errors {
		r.add(tableGuard, 60, fmt.Sprintf("%s,%s,%s,%s=%d", from, f.icmp, as, f.icmpType, kind),
			cookie(kindBase, 0), to(tableOut))
	}
	r.add(tableGuard, 60, fmt.Sprintf("%s,%s,nw_proto=%d,%s,nw_frag=later", from, f.ip, f.later, as),
		cookie(kindBase, 0), to(tableOut))
}

// receives adds the learning of new flows, and the translation of ports. A group learns no flow: it
// counts the first packets of TCP connections.
func (p plug) receives(r rules, f family, vip netip.Addr, m Mode) {
	is := fmt.Sprintf("reg0=%d", p.Port)
	known := cookie(kindKnown, uint32(p.Port))
	fresh := cookie(kindNew, uint32(p.Port))
	actions := []string{to(tableTarget)}
	if m == Learn {
		actions = []string{learn(f, pando.TCP, known), to(tableTarget)}
	}
	r.add(tableLearn, 10, fmt.Sprintf("%s,%s,%s", is, f.tcp, first), fresh, actions...)
	r.add(tableLearn, 9, fmt.Sprintf("%s,%s", is, f.tcp), cookie(kindBase, 0), actions...)
	for _, port := range p.Ports {
		match := fmt.Sprintf("%s,%s,tp_dst=%d", is, f.protocol(port.Protocol), port.Published)
		if port.Published != port.Target {
			r.add(tableTarget, 10, match, cookie(kindBase, 0),
				fmt.Sprintf("set_field:%d->%s_dst", port.Target, port.Protocol), to(tableDeliver))
		}
		if port.Protocol != pando.UDP {
			continue
		}
		actions := []string{p.answers(f, port, vip, known), to(tableTarget)}
		if m == Learn {
			actions = append([]string{learn(f, pando.UDP, known)}, actions...)
		}
		counted := fresh
		if m == Group { // every datagram comes this way
			counted = cookie(kindBase, 0)
		}
		r.add(tableLearn, 20, match, counted, actions...)
	}
}

// learn returns the action that remembers the endpoint of a flow: the second table of Fractal §3.2.
func learn(f family, p pando.Protocol, cookie string) string {
	name, number := "TCP", fmt.Sprintf("6,idle_timeout=%d,fin_idle_timeout=%d", tcpIdleSeconds,
		finIdleSeconds)
	if p == pando.UDP {
		name, number = "UDP", fmt.Sprintf("17,idle_timeout=%d", udpIdleSeconds)
	}
	return fmt.Sprintf("learn(table=%d,priority=10,cookie=%s,eth_type=%s,nw_proto=%s,%s,%s,"+
		"NXM_OF_%s_SRC[],NXM_OF_%s_DST[],load:NXM_NX_REG0[0..15]->NXM_NX_REG0[0..15])",
		tableKnown, cookie, f.etherType, number, f.matchSrc, f.matchDst, name, name)
}

// answers returns the action that remembers the client of a datagram. A server that is bound to
// every address answers as itself, and its answer becomes the VIP's.
func (p plug) answers(f family, port pando.Port, vip netip.Addr, cookie string) string {
	return fmt.Sprintf("learn(table=%d,priority=10,cookie=%s,eth_type=%s,nw_proto=17,idle_timeout=%d,"+
		"in_port=%d,%s=%s,NXM_OF_UDP_DST[]=NXM_OF_UDP_SRC[],udp_src=%d,load:0x%s->%s,"+
		"load:%d->NXM_OF_UDP_SRC[])", tableAnswer, cookie, f.etherType, udpIdleSeconds, p.Port,
		f.matchDst, f.matchSrc, port.Target, hex.EncodeToString(vip.AsSlice()), f.matchSrc,
		port.Published)
}

// deliver adds the last step to the instance, which counts.
func (p plug) deliver(r rules) {
	is := fmt.Sprintf("reg0=%d", p.Port)
	actions := []string{
		fmt.Sprintf("set_field:%s->eth_src", p.Link.HostMAC),
		fmt.Sprintf("set_field:%s->eth_dst", p.Link.MAC), fmt.Sprintf("output:%d", p.Port),
	}
	r.add(tableDeliver, 10, is, cookie(kindDeliver, uint32(p.Port)), actions...)
	for _, f := range families {
		for n, flag := range []string{"+fin", "+rst"} {
			r.add(tableDeliver, 11+n, fmt.Sprintf("%s,%s,tcp_flags=%s", is, f.tcp, flag),
				cookie(kindEnd, uint32(p.Port)|endTo), actions...)
		}
	}
}

// endTo marks the count of ends to an instance: such a packet is also one to it.
const endTo = 1 << 16
