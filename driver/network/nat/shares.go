package nat

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/access/share"
)

// sharesTable holds the rules by which tenants share the kernel's table of tracked connections.
const sharesTable = "pando-shares"

// Names in sharesTable. The sets are of one family of addresses each.
const (
	operators = "operators" // the addresses of the instances of operators
	chainOf   = "chain-of"  // the chains of the other addresses
	ofAll     = "all"       // the chain that counts for all tenants together
	ofTenant  = "tenant-"   // begins the name of the chain that counts for one tenant
	unknown   = ofTenant + "unknown"
)

// A share is split into buckets by bits of the source port: the kernel searches the connections of one
// bucket for each new connection. The lowest bit is left out, because clients choose ports of one
// parity.
const (
	bucketsEach = 32
	bucketsAll  = 64
	bucketLeast = 64 // connections; a smaller share has fewer buckets
)

// tenantsKept is the number of tenants whose counts stay after their last instance has left. Their
// connections may still be tracked.
const tenantsKept = 256

// ConnectionBound returns how tenants share the tracked connections of this host: each has an eighth,
// and a quarter is kept for the host and its operators.
func ConnectionBound() share.Bound {
	total := int64(1 << 16)
	text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_max")
	if n, bad := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && bad == nil && n > 0 {
		total = n
	}
	return share.Bound{Total: total, Each: max(1, total/8), Reserve: total / 4}
}

// Shares gives each tenant a share of the connections that the kernel tracks for instances of this
// host. A new connection beyond it is dropped. It implements pando.Outbound.
type Shares struct {
	bound share.Bound
	table *nftables.Table

	mu     sync.Mutex
	chains map[string]bool       // of tenants
	at     map[netip.Addr]string // the place that counts the connections of an address
}

// ShareConnections writes the rules of the shares for the instances of this host. Rules of a former
// agent with the same bound stay, with their counts.
//
//	prerouting:      from an instance of operators, or not a new one of an instance   accept
//	                 of a tenant                                                       jump tenant-N
//	                 of an instance that just began                                    jump tenant-unknown
//	                 without ports                                                     drop
//	tenant-N:        beyond the bucket of its port                                     drop
//	                                                                                   jump all
//	all:             beyond the bucket of its port                                     drop
//	                                                                                   accept
func ShareConnections(instances4, instances6 netip.Prefix, b share.Bound) (*Shares, error) {
	c, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("share tracked connections: %w", err)
	}
	s := &Shares{bound: b, chains: map[string]bool{}, at: map[netip.Addr]string{},
		table: &nftables.Table{Name: sharesTable, Family: nftables.TableFamilyINet}}
	// A rule of another layout or bound has another name.
	name := fmt.Sprintf("share-1-%d-%d-%d-%s", b.Total, b.Each, b.Reserve, instances4.Addr())
	if _, err := c.ListChain(s.table, name); err == nil {
		return s, s.read()
	}
	c.DelTable(c.AddTable(s.table))
	c.AddTable(s.table)
	all := c.AddChain(&nftables.Chain{Name: ofAll, Table: s.table})
	s.count(c, all, b.Total-b.Reserve, bucketsAll, &expr.Verdict{Kind: expr.VerdictAccept})
	s.addTenant(c, unknown)
	chain := c.AddChain(&nftables.Chain{Name: name, Table: s.table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityMangle})
	for _, f := range []family{
		{unix.NFPROTO_IPV4, instances4, "4"}, {unix.NFPROTO_IPV6, instances6, "6"},
	} {
		six := f.proto == unix.NFPROTO_IPV6
		err := errors.Join(c.AddSet(s.set(operators, six), nil), c.AddSet(s.set(chainOf, six), nil))
		if err != nil {
			return nil, fmt.Errorf("share tracked connections: %w", err)
		}
		for _, exprs := range f.rules() {
			c.AddRule(&nftables.Rule{Table: s.table, Chain: chain, Exprs: exprs})
		}
	}
	if err := c.Flush(); err != nil {
		return nil, fmt.Errorf("share tracked connections (nf_tables with ct count): %w", err)
	}
	return s, nil
}

// read finds the chains and the addresses that are there, of a former agent.
func (s *Shares) read() error {
	clear(s.chains)
	clear(s.at)
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("share tracked connections: %w", err)
	}
	all, err := c.ListChainsOfTableFamily(s.table.Family)
	for _, chain := range all {
		if chain.Table.Name == sharesTable && strings.HasPrefix(chain.Name, ofTenant) {
			s.chains[chain.Name] = true
		}
	}
	for _, six := range []bool{false, true} {
		for _, name := range []string{operators, chainOf} {
			elements, bad := c.GetSetElements(s.set(name, six))
			err = errors.Join(err, bad)
			for _, e := range elements {
				at, _ := netip.AddrFromSlice(e.Key)
				s.at[at] = name // of a chain, only that it has one
			}
		}
	}
	if err != nil {
		return fmt.Errorf("share tracked connections: %w", err)
	}
	return nil
}

// addTenant adds the chain of a tenant.
func (s *Shares) addTenant(c *nftables.Conn, name string) {
	chain := c.AddChain(&nftables.Chain{Name: name, Table: s.table})
	s.count(c, chain, s.bound.Each, bucketsEach, &expr.Verdict{Kind: expr.VerdictJump, Chain: ofAll})
	s.chains[name] = true
}

// count adds the rules that drop the connections beyond a limit, and a verdict for those within it.
func (s *Shares) count(
	c *nftables.Conn, chain *nftables.Chain, most int64, buckets int64, then *expr.Verdict,
) {
	for buckets > 1 && most/buckets < bucketLeast {
		buckets /= 2
	}
	for n := range buckets {
		c.AddRule(&nftables.Rule{Table: s.table, Chain: chain, Exprs: append(port(),
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 2, Xor: make([]byte, 2),
				Mask: binaryutil.BigEndian.PutUint16(uint16(buckets-1) << 1)},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(uint16(n) << 1)},
			&expr.Connlimit{Count: uint32(max(1, most/buckets)), Flags: expr.NFT_CONNLIMIT_F_INV},
			&expr.Verdict{Kind: expr.VerdictDrop})})
	}
	c.AddRule(&nftables.Rule{Table: s.table, Chain: chain, Exprs: []expr.Any{then}})
}

// port loads the source port of a packet, or what another protocol has there.
func port() []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Len: 2}}
}

// family is the instances of one family of addresses.
type family struct {
	proto  byte
	mine   netip.Prefix
	suffix string
}

// begins matches the packets of instances that begin a connection.
func (f family) begins() []expr.Any {
	out := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{f.proto}},
	}
	out = append(out, source.within(f.mine, expr.CmpOpEq)...)
	return append(out,
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Xor: make([]byte, 4),
			Mask: binaryutil.NativeEndian.PutUint32(expr.CtStateBitNEW)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)})
}

// rules returns the rules of a family in their order.
func (f family) rules() [][]expr.Any {
	address := &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4}
	if f.proto == unix.NFPROTO_IPV6 {
		address.Offset, address.Len = 8, 16
	}
	withPort := append(append(f.begins(), port()...),
		&expr.Cmp{Op: expr.CmpOpGte, Register: 1, Data: make([]byte, 2)})
	return [][]expr.Any{
		append(f.begins(), address, &expr.Lookup{SourceRegister: 1, SetName: operators + f.suffix},
			&expr.Verdict{Kind: expr.VerdictAccept}),
		append(withPort[:len(withPort):len(withPort)], address, &expr.Lookup{SourceRegister: 1,
			DestRegister: 0, IsDestRegSet: true, SetName: chainOf + f.suffix}),
		append(withPort[:len(withPort):len(withPort)], &expr.Verdict{Kind: expr.VerdictJump, Chain: unknown}),
		append(f.begins(), &expr.Verdict{Kind: expr.VerdictDrop}),
	}
}

// Charge implements pando.Outbound. Operators, who have the tenant default, share with nobody.
func (s *Shares) Charge(l pando.Link, t pando.Tenant) error {
	to := operators
	if t != pando.DefaultTenant {
		to = chainName(t)
	}
	return s.move(l, to)
}

// Forget implements pando.Outbound.
func (s *Shares) Forget(l pando.Link) error { return s.move(l, "") }

// move makes a place count the connections of a link: a chain, operators, or "" for no place.
func (s *Shares) move(l pando.Link, to string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := nftables.New()
	if err == nil && to != "" && to != operators && !s.chains[to] {
		s.prune(c)
		s.addTenant(c, to)
	}
	for _, at := range []netip.Addr{l.IP4, l.IP6} {
		was := s.at[at]
		if !at.IsValid() || err != nil || was == to {
			continue
		}
		if was != "" {
			set, element := s.element(at, was)
			set.IsMap = false // an element needs no value to be deleted
			err = c.SetDeleteElements(set, element)
			delete(s.at, at)
		}
		if err == nil && to != "" {
			set, element := s.element(at, to)
			err = c.SetAddElements(set, element)
			s.at[at] = to
		}
	}
	if err == nil {
		err = c.Flush()
	}
	if err != nil {
		return fmt.Errorf("share tracked connections: %w", errors.Join(err, s.read()))
	}
	return nil
}

// element returns an address as an element of the set of a place.
func (s *Shares) element(at netip.Addr, place string) (*nftables.Set, []nftables.SetElement) {
	set := s.set(operators, at.Is6())
	e := nftables.SetElement{Key: at.AsSlice()}
	if place != operators {
		set = s.set(chainOf, at.Is6())
		e.VerdictData = &expr.Verdict{Kind: expr.VerdictJump, Chain: place}
	}
	return set, []nftables.SetElement{e}
}

// set returns the description of a set of a family.
func (s *Shares) set(name string, six bool) *nftables.Set {
	set := &nftables.Set{Table: s.table, Name: name + "4", KeyType: nftables.TypeIPAddr}
	if six {
		set.Name, set.KeyType = name+"6", nftables.TypeIP6Addr
	}
	if name == chainOf {
		set.IsMap, set.DataType = true, nftables.TypeVerdict
	}
	return set
}

// pruneTries bounds the chains that one call tries to remove.
const pruneTries = 8

// prune removes chains that no address uses while there are more than tenantsKept.
func (s *Shares) prune(c *nftables.Conn) {
	used, tries := map[string]bool{unknown: true}, 0
	if len(s.chains) <= tenantsKept {
		return
	}
	for _, name := range s.at {
		used[name] = true
	}
	for name := range s.chains {
		if len(s.chains) <= tenantsKept || tries == pruneTries {
			return
		}
		if used[name] {
			continue
		}
		tries++
		c.DelChain(&nftables.Chain{Name: name, Table: s.table})
		if c.Flush() == nil {
			delete(s.chains, name)
		}
	}
}

// chainName returns the name of the chain of a tenant. The name of a tenant may be longer than that of
// a chain. Two tenants with one number share, which is one case in 2⁶⁴.
func chainName(t pando.Tenant) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(t)) // never fails
	return fmt.Sprintf("%s%016x", ofTenant, h.Sum64())
}
