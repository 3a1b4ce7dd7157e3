package dns

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"pando.run/pando"
)

// isLocal reports whether an address has no public name (RFC 6303), or is one that Pando gives out.
func isLocal(a netip.Addr) bool {
	return slices.ContainsFunc([]netip.Prefix{
		netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8"), pando.VIPs4,
		pando.Instances4,
	}, func(p netip.Prefix) bool { return p.Contains(a) })
}

// nobodys reports whether no outside resolver can answer a question. Such questions ask for the
// name of a local address, or for the address of a name without a dot, which means this machine.
// Many programs ask them at their start: Python's servers ask for the host's own name. They would
// wait for outside resolvers, for seconds where there are none.
func nobodys(q dns.Question) bool {
	name := dns.CanonicalName(q.Name)
	if q.Qtype == dns.TypeA || q.Qtype == dns.TypeAAAA {
		return dns.CountLabel(name) == 1
	}
	reverse, ok := strings.CutSuffix(name, ".in-addr.arpa.")
	if !ok {
		return false
	}
	labels := strings.Split(reverse, ".")
	slices.Reverse(labels)
	a, err := netip.ParseAddr(strings.Join(labels, "."))
	return err == nil && isLocal(a)
}
