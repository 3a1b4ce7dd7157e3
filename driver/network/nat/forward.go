package nat

import (
	"encoding/binary"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// Forward makes a network namespace send the flows of some ports to an external endpoint, from any
// of its own addresses. ns is open in this process. A former endpoint is replaced.
//
//	prerouting:   to the target of a port    dnat to the endpoint
//	              an ICMP echo               dnat to the endpoint, which is what a ping probes
//	postrouting:  translated so              masquerade: the endpoint answers through the namespace
//	forward:      not translated             drop: the namespace is no router
func Forward(ns int, e pando.External, ports []pando.Port) error {
	c, err := nftables.New(nftables.WithNetNSFd(ns))
	if err != nil {
		return fmt.Errorf("translate addresses: %w", err)
	}
	family := nftables.TableFamilyIPv4
	if e.Address.Is6() {
		family = nftables.TableFamilyIPv6
	}
	table := c.AddTable(&nftables.Table{Name: Table, Family: family})
	c.DelTable(table)
	table = c.AddTable(table)
	in := c.AddChain(&nftables.Chain{Name: "to-endpoint", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest})
	for _, p := range ports {
		c.AddRule(&nftables.Rule{Table: table, Chain: in, Exprs: translated(e, p, family)})
	}
	c.AddRule(&nftables.Rule{Table: table, Chain: in, Exprs: echoes(e, family)})
	out := c.AddChain(&nftables.Chain{Name: "from-here", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
	c.AddRule(&nftables.Rule{Table: table, Chain: out,
		Exprs: append(isTranslated(expr.CmpOpNeq), &expr.Masq{})})
	pass := c.AddChain(&nftables.Chain{Name: "no-router", Table: table,
		Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward,
		Priority: nftables.ChainPriorityFilter})
	c.AddRule(&nftables.Rule{Table: table, Chain: pass,
		Exprs: append(isTranslated(expr.CmpOpEq), &expr.Verdict{Kind: expr.VerdictDrop})})
	if err := c.Flush(); err != nil {
		return fmt.Errorf("translate addresses (nf_tables with nat): %w", err)
	}
	return nil
}

// translated sends the flows to the target of a port to the endpoint.
func translated(e pando.External, p pando.Port, family nftables.TableFamily) []expr.Any {
	protocol, to := byte(unix.IPPROTO_TCP), p.Target
	if p.Protocol == pando.UDP {
		protocol = unix.IPPROTO_UDP
	}
	if e.Port != 0 {
		to = e.Port
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{protocol}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint16(nil, p.Target)},
		&expr.Immediate{Register: 1, Data: e.Address.AsSlice()},
		&expr.Immediate{Register: 2, Data: binary.BigEndian.AppendUint16(nil, to)},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(family), RegAddrMin: 1, RegProtoMin: 2},
	}
}

// echoes sends ICMP echoes to the endpoint.
func echoes(e pando.External, family nftables.TableFamily) []expr.Any {
	protocol, request := byte(unix.IPPROTO_ICMP), byte(ipv4.ICMPTypeEcho)
	if family == nftables.TableFamilyIPv6 {
		protocol, request = unix.IPPROTO_ICMPV6, byte(ipv6.ICMPTypeEchoRequest)
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{protocol}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Len: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{request}},
		&expr.Immediate{Register: 1, Data: e.Address.AsSlice()},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(family), RegAddrMin: 1},
	}
}

// statusDNAT is IPS_DST_NAT of the kernel's nf_conntrack_common.h.
const statusDNAT = 1 << 5

// isTranslated compares the mark of a translated flow with 0. CmpOpNeq: it is translated.
func isTranslated(op expr.CmpOp) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATUS, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(statusDNAT), Xor: make([]byte, 4)},
		&expr.Cmp{Op: op, Register: 1, Data: make([]byte, 4)},
	}
}
