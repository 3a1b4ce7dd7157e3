// Package nat lets instances open connections to the rest of the world. A packet that leaves a
// host from an instance's own address gets the host's address. Only this host has a route back to
// the instance.
//
// It never touches steered packets: packets from and to VIPs are not even tracked.
package nat

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// Table is the name of the tables that hold the rules, one for IPv4 and one for IPv6.
const Table = "pando"

// Translate writes the rules for the instances of this host. It replaces a former agent's rules in
// one transaction. The rules stay when the agent ends.
//
//	prerouting, output:  from or to a VIP                                    notrack
//	postrouting:         from an instance, not to an instance or a VIP       masquerade
func Translate(instances4, instances6 netip.Prefix) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("let instances reach out: %w", err)
	}
	for _, t := range []struct {
		family               nftables.TableFamily
		mine, all, published netip.Prefix
	}{
		{nftables.TableFamilyIPv4, instances4, pando.Instances4, pando.VIPs4},
		{nftables.TableFamilyIPv6, instances6, everyInstance6(), pando.VIPs6},
	} {
		// Added first, so that there is a table to delete.
		table := c.AddTable(&nftables.Table{Name: Table, Family: t.family})
		c.DelTable(table)
		table = c.AddTable(table)
		for _, hook := range []*nftables.ChainHook{
			nftables.ChainHookPrerouting, nftables.ChainHookOutput,
		} {
			chain := c.AddChain(&nftables.Chain{
				Name: fmt.Sprintf("untracked%d", *hook), Table: table, Type: nftables.ChainTypeFilter,
				Hooknum: hook, Priority: nftables.ChainPriorityRaw,
			})
			for _, end := range []end{source, destination} {
				c.AddRule(&nftables.Rule{Table: table, Chain: chain,
					Exprs: append(end.within(t.published, expr.CmpOpEq), &expr.Notrack{})})
			}
		}
		out := c.AddChain(&nftables.Chain{
			Name: "reach-out", Table: table, Type: nftables.ChainTypeNAT,
			Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
		})
		rule := source.within(t.mine, expr.CmpOpEq)
		rule = append(rule, destination.within(t.all, expr.CmpOpNeq)...)
		rule = append(rule, destination.within(t.published, expr.CmpOpNeq)...)
		c.AddRule(&nftables.Rule{Table: table, Chain: out, Exprs: append(rule, &expr.Masq{})})
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("let instances reach out (nf_tables with nat): %w", err)
	}
	return nil
}

// Purge removes the rules.
func Purge() error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("remove the rules of instances: %w", err)
	}
	for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6} {
		c.DelTable(c.AddTable(&nftables.Table{Name: Table, Family: family}))
	}
	c.DelTable(c.AddTable(&nftables.Table{Name: sharesTable, Family: nftables.TableFamilyINet}))
	if err := c.Flush(); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("remove the rules of instances: %w", err)
	}
	return nil
}

// everyInstance6 returns the addresses of all instances of all hosts (pando.InstanceRange).
func everyInstance6() netip.Prefix {
	_, first := pando.InstanceRange(0)
	return netip.PrefixFrom(first.Addr(), 64).Masked()
}

// end is one of a packet's two addresses.
type end int

const (
	source end = iota
	destination
)

// within compares an address of a packet with a range.
func (e end) within(p netip.Prefix, op expr.CmpOp) []expr.Any {
	size, offset := uint32(4), uint32(12)
	if p.Addr().Is6() {
		size, offset = 16, 8
	}
	if e == destination {
		offset += size
	}
	mask := make([]byte, size)
	for bit := range p.Bits() {
		mask[bit/8] |= 0x80 >> (bit % 8)
	}
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: size, Mask: mask, Xor: make([]byte, size)},
		&expr.Cmp{Op: op, Register: 1, Data: p.Masked().Addr().AsSlice()},
	}
}
