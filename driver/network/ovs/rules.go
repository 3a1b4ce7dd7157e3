package ovs

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"pando.run/pando"
)

// The tables of the bridge, in the order in which a packet meets them.
const (
	tableAdmit   = 0  // where does it come from?
	tableGuard   = 1  // may an instance send it?
	tableOut     = 2  // where does an instance's packet go?
	tableKnown   = 10 // learned: a known flow has its endpoint's port in reg0
	tableAnswer  = 11 // learned: answers of UDP servers that are bound to every address
	tableSteer   = 20 // which service?
	tableStay    = 21 // is its flow known?
	tablePick    = 22 // a new flow gets an endpoint: by bundle, or by a select group
	tableLearn   = 23 // and is learned
	tableTarget  = 40 // the published port becomes the target port
	tableDeliver = 41 // to the endpoint
)

// kind is the meaning of a rule's counters. It is the high half of the rule's cookie.
type kind uint32

const (
	kindBase    kind = 0x70616e00 + iota // a rule of the pipeline
	kindDrop                             // the low half is the place in dropReasons
	kindNew                              // a new flow to the port of the low half
	kindDeliver                          // a packet to it
	kindEnd                              // likewise, a FIN or RST; or one from it
	kindKnown                            // a learned flow to it
	kindService                          // a rule of the service of the low half
)

func cookie(k kind, low uint32) string { return fmt.Sprintf("0x%08x%08x", uint32(k), low) }

// dropReasons gives each reason a number.
var dropReasons = []pando.DropReason{
	pando.DroppedSpoofed, pando.DroppedChatter, pando.DroppedFragment, pando.DroppedHeader,
	pando.DroppedProtocol, pando.DroppedNoService, pando.DroppedNoEndpoint, pando.DroppedNoFlow,
	pando.DroppedKernel, pando.DroppedStranger,
}

// Times after which a silent flow is forgotten without a sweep, in seconds. The first is above the
// keepalive of most systems.
const (
	tcpIdleSeconds = 135 * 60
	finIdleSeconds = 5 * 60
	udpIdleSeconds = 3 * 60
)

// rules are flows of the switch, by table, priority and match. A value has cookie and actions.
type rules map[string]rule

type rule struct {
	Cookie, Actions string
}

// add adds a rule. A match is "" or begins with a field.
func (r rules) add(table, priority int, match, cookie string, actions ...string) {
	key := fmt.Sprintf("table=%d,priority=%d", table, priority)
	if match != "" {
		key += "," + match
	}
	text := strings.Join(actions, ",")
	if text == "" {
		text = "drop"
	}
	r[key] = rule{cookie, text}
}

// drop adds a rule that drops and counts packets.
func (r rules) drop(table, priority int, match string, why pando.DropReason) {
	r.add(table, priority, match, cookie(kindDrop, uint32(slices.Index(dropReasons, why))))
}

// difference returns the commands that turn the rules into others. Unchanged rules keep their
// counters, and so do those with new actions.
func (r rules) difference(want rules) (lines []string) {
	for key := range r {
		if _, ok := want[key]; !ok {
			lines = append(lines, "flow delete_strict "+key)
		}
	}
	for key, w := range want {
		if r[key] != w {
			lines = append(lines, fmt.Sprintf("flow add %s,cookie=%s,actions=%s", key, w.Cookie, w.Actions))
		}
	}
	slices.Sort(lines)
	return lines
}

// family is the words of OpenFlow for an address family.
type family struct {
	six                    bool
	ip, tcp, udp, src, dst string
	matchSrc, matchDst     string // the same as fields of the Nicira extension
	etherType              string
	later                  int // the protocol of a later fragment of UDP, as the switch sees it
	icmp, icmpType         string
	ask, answer            int // types of an echo
	errors                 []int
	vips                   func() netip.Prefix
	gateway                func() netip.Addr
	spare                  string // a register as large as an address
}

var families = []family{
	{
		ip: "ip", tcp: "tcp", udp: "udp", src: "nw_src", dst: "nw_dst",
		matchSrc: "NXM_OF_IP_SRC[]", matchDst: "NXM_OF_IP_DST[]", etherType: "0x800", later: 17,
		icmp: "icmp", icmpType: "icmp_type", ask: 8, errors: []int{3, 11, 12},
		vips:    func() netip.Prefix { return pando.VIPs4 },
		gateway: func() netip.Addr { return pando.Gateway4 }, spare: "NXM_NX_REG8[]",
	},
	{
		six: true, ip: "ipv6", tcp: "tcp6", udp: "udp6", src: "ipv6_src", dst: "ipv6_dst",
		matchSrc: "NXM_NX_IPV6_SRC[]", matchDst: "NXM_NX_IPV6_DST[]", etherType: "0x86dd", later: 44,
		icmp: "icmp6", icmpType: "icmpv6_type", ask: 128, answer: 129, errors: []int{1, 2, 3, 4},
		vips:    func() netip.Prefix { return pando.VIPs6 },
		gateway: func() netip.Addr { return pando.Gateway6 }, spare: "NXM_NX_XXREG2[]",
	},
}

// protocol returns the family's word for a protocol.
func (f family) protocol(p pando.Protocol) string {
	if p == pando.UDP {
		return f.udp
	}
	return f.tcp
}

// of returns the address of this family.
func (f family) of(v4, v6 netip.Addr) netip.Addr {
	if f.six {
		return v6
	}
	return v4
}

func to(table int) string       { return fmt.Sprintf("goto_table:%d", table) }
func resubmit(table int) string { return fmt.Sprintf("resubmit(,%d)", table) }

// first matches the first packet of a TCP connection.
const first = "tcp_flags=+syn-ack"

// base returns the rules of every bridge. host is the port of the host's own stack, with its MAC.
func base(host uint16, mac net.HardwareAddr) rules {
	r := rules{}
	own := cookie(kindBase, 0)
	toHost := []string{fmt.Sprintf("set_field:%s->eth_dst", mac), fmt.Sprintf("output:%d", host)}
	r.add(tableAdmit, 0, "", own)
	r.add(tableKnown, 0, "", own)
	r.add(tableAnswer, 0, "", own)
	r.add(tableOut, 0, "", own, toHost...)
	r.drop(tableGuard, 0, "", pando.DroppedSpoofed)
	for _, f := range families {
		into := fmt.Sprintf("%s,%s=%s", f.ip, f.dst, f.vips())
		r.add(tableAdmit, 100, fmt.Sprintf("in_port=%d,%s", host, into), own, to(tableSteer))
		r.add(tableOut, 100, fmt.Sprintf("%s,%s=%s", f.ip, f.dst, f.gateway()), own, toHost...)
		r.drop(tableOut, 95, fmt.Sprintf("%s,%s=%s", into, f.src, f.vips()), pando.DroppedSpoofed)
		r.add(tableOut, 90, into, own, to(tableSteer))
		r.drop(tableSteer, 95, f.ip+",nw_frag=later", pando.DroppedFragment)
		r.drop(tableSteer, 1, f.ip, pando.DroppedNoService)
		r.drop(tablePick, 0, f.ip, pando.DroppedNoEndpoint)
		r.drop(tablePick, 1, f.tcp+",tcp_flags=-syn", pando.DroppedNoFlow)
	}
	r.drop(tableSteer, 0, "", pando.DroppedProtocol)
	r.add(tableStay, 10, "reg0=0", own, to(tablePick))
	r.add(tableStay, 0, "", own, to(tableTarget))
	r.drop(tableLearn, 0, "", pando.DroppedNoEndpoint)
	r.add(tableTarget, 0, "", own, to(tableDeliver))
	r.drop(tableDeliver, 0, "", pando.DroppedNoEndpoint)
	return r
}
