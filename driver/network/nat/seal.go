package nat

import (
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// sealTable is the name of the table that closes a network namespace.
const sealTable = "pando-seal"

// Seal drops all packets that enter or leave a network namespace by its link, in silence. ns is
// open in this process. Packets between the namespace's own programs pass.
func Seal(ns int, link string) error {
	return reseal(ns, func(c *nftables.Conn) {
		t := c.AddTable(&nftables.Table{Name: sealTable, Family: nftables.TableFamilyINet})
		for _, way := range []struct {
			name string
			hook *nftables.ChainHook
			key  expr.MetaKey
		}{
			{"in", nftables.ChainHookPrerouting, expr.MetaKeyIIFNAME},
			{"out", nftables.ChainHookPostrouting, expr.MetaKeyOIFNAME},
		} {
			chain := c.AddChain(&nftables.Chain{Name: way.name, Table: t,
				Type: nftables.ChainTypeFilter, Hooknum: way.hook, Priority: nftables.ChainPriorityRaw})
			name := make([]byte, unix.IFNAMSIZ)
			copy(name, link)
			c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: []expr.Any{
				&expr.Meta{Key: way.key, Register: 1},
				&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: name},
				&expr.Verdict{Kind: expr.VerdictDrop},
			}})
		}
	})
}

// Unseal opens a namespace that Seal closed. It does nothing to an open one.
func Unseal(ns int) error { return reseal(ns, func(*nftables.Conn) {}) }

// reseal deletes the table and calls add, in one transaction.
func reseal(ns int, add func(*nftables.Conn)) error {
	c, err := nftables.New(nftables.WithNetNSFd(ns))
	if err != nil {
		return fmt.Errorf("seal a network namespace: %w", err)
	}
	table := c.AddTable(&nftables.Table{Name: sealTable, Family: nftables.TableFamilyINet})
	c.DelTable(table)
	add(c)
	if err := c.Flush(); err != nil {
		return fmt.Errorf("seal a network namespace (nf_tables): %w", err)
	}
	return nil
}
