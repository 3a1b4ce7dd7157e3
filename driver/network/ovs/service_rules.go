package ovs

import (
	"fmt"
	"slices"
	"strings"

	"pando.run/pando"
)

// Mode is one of Fractal's two pipelines (§3.2).
type Mode string

const (
	// Learn chooses by bundle and learns the choice. Established flows keep it under every change.
	Learn Mode = "learn"
	// Group chooses by a select group with weights. It has no rule per flow, so that hardware may do
	// it. A change of weights moves established flows.
	Group Mode = "group"
)

// share is an endpoint at a port with its weight.
type share struct {
	Port   uint16
	Weight int
}

const (
	slotsMin = 64   // the resolution of weights in a bundle
	slotsMax = 2048 // BUNDLE_MAX_MEMBERS of Open vSwitch
)

// slots returns the members of a bundle: each port as often as its weight wants, and at least once.
func slots(all []share) (out []uint16) {
	sum, takers := 0, 0
	for _, s := range all {
		if s.Weight > 0 {
			sum, takers = sum+s.Weight, takers+1
		}
	}
	size := min(max(slotsMin, 4*takers), slotsMax)
	for _, s := range all {
		if s.Weight <= 0 {
			continue
		}
		for range max(1, (s.Weight*size+sum/2)/sum) {
			out = append(out, s.Port)
		}
	}
	return out[:min(len(out), slotsMax)]
}

// serviceRules returns the rules of one service. n is its number, and shares its endpoints.
func serviceRules(t pando.SteeringTable, n uint32, m Mode, shares []share) rules {
	r := rules{}
	own := cookie(kindService, n)
	number := fmt.Sprintf("load:%d->NXM_NX_REG1[]", n)
	for _, f := range families {
		vip := f.of(t.VIP4, t.VIP6)
		if !vip.IsValid() {
			continue
		}
		into := fmt.Sprintf("%s=%s", f.dst, vip)
		for _, p := range t.Ports {
			known := []string{resubmit(tableKnown)}
			if m == Group {
				known = nil
			}
			r.add(tableSteer, 90, fmt.Sprintf("%s,%s,tp_dst=%d", f.protocol(p.Protocol), into, p.Published),
				own, append(append([]string{number}, known...), to(tableStay))...)
		}
		r.add(tableSteer, 40, fmt.Sprintf("%s,%s,%s=%d,nw_frag=no", f.icmp, into, f.icmpType, f.ask), own,
			echo(f)...)
		r.drop(tableSteer, 41, fmt.Sprintf("%s,%s,nw_frag=yes", f.icmp, into), pando.DroppedFragment)
		for _, kind := range f.errors {
			r.drop(tableSteer, 40, fmt.Sprintf("%s,%s,%s=%d", f.icmp, into, f.icmpType, kind),
				pando.DroppedNoFlow)
		}
		for _, word := range []string{f.tcp, f.udp} {
			r.drop(tableSteer, 20, word+","+into, pando.DroppedNoService)
		}
		r.drop(tableSteer, 10, f.ip+","+into, pando.DroppedProtocol)
	}
	is := fmt.Sprintf("reg1=%d", n)
	for _, s := range shares {
		if s.Weight > 0 {
			continue
		}
		for _, f := range families { // a used pair of ports opens a new flow elsewhere
			r.add(tableStay, 20, fmt.Sprintf("%s,reg0=%d,%s,%s", is, s.Port, f.tcp, first), own,
				"load:0->NXM_NX_REG0[]", to(tablePick))
		}
	}
	if action := pick(n, m, t.By, shares); action != "" {
		r.add(tablePick, 10, is, own, action)
	}
	return r
}

// pick returns the action that gives a new flow its endpoint, or "" if none takes new flows.
func pick(n uint32, m Mode, by pando.BalanceBy, shares []share) string {
	members := slots(shares)
	if len(members) == 0 {
		return ""
	}
	if m == Group {
		return fmt.Sprintf("group:%d", n)
	}
	text := make([]string, len(members))
	for at, port := range members {
		text[at] = fmt.Sprint(port)
	}
	of := "symmetric_l3l4"
	if by == pando.ByClient {
		of = "nw_src" // of either family
	}
	return fmt.Sprintf("bundle_load(%s,0,hrw,ofport,NXM_NX_REG0[0..15],members:%s),%s",
		of, strings.Join(text, ","), resubmit(tableLearn))
}

// echo answers a ping in place.
func echo(f family) []string {
	swap := func(a, b, spare string) []string {
		return []string{"move:" + a + "->" + spare, "move:" + b + "->" + a, "move:" + spare + "->" + b}
	}
	out := swap(f.matchSrc, f.matchDst, f.spare)
	out = append(out, swap("NXM_OF_ETH_SRC[]", "NXM_OF_ETH_DST[]", "NXM_NX_XXREG3[0..47]")...)
	return append(out, fmt.Sprintf("set_field:%d->%s", f.answer, f.icmpType), "in_port")
}

// buckets returns the command that sets the group of a service.
func buckets(n uint32, by pando.BalanceBy, shares []share) string {
	var b strings.Builder
	fields := "ip_src,ip_dst,ipv6_src,ipv6_dst,tcp_src,tcp_dst,udp_src,udp_dst"
	if by == pando.ByClient {
		fields = "ip_src,ipv6_src"
	}
	fmt.Fprintf(&b, "group add_or_mod group_id=%d,type=select,selection_method=hash,fields(%s)", n,
		fields)
	for _, s := range slices.SortedFunc(slices.Values(shares), func(x, y share) int {
		return int(x.Port) - int(y.Port)
	}) {
		fmt.Fprintf(&b, ",bucket=bucket_id:%d,weight:%d,actions=load:%d->NXM_NX_REG0[0..15],%s",
			s.Port, s.Weight, s.Port, resubmit(tableLearn))
	}
	return b.String()
}
