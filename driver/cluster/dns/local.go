package dns

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"pando.run/pando"
)

// local4 and local6 have no public name (RFC 6303), or are addresses that Pando gives out.
var (
	local4 = []netip.Prefix{
		netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8"),
		netip.MustParsePrefix("169.254.0.0/16"),
	}
	local6 = []netip.Prefix{
		netip.MustParsePrefix("::/127"), netip.MustParsePrefix("fe80::/10"),
		netip.MustParsePrefix("fc00::/7"),
	}
)

// isLocal reports whether an address has no public name, or is one that Pando gives out.
func isLocal(a netip.Addr) bool {
	all := append(slices.Clone(local4), pando.VIPs4, pando.Instances4)
	if a.Is6() {
		all = local6
	}
	return slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(a) })
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
	a, ok := addressOf(name)
	return ok && isLocal(a)
}

// addressOf returns the address whose name a question for a name below in-addr.arpa or ip6.arpa
// asks for.
func addressOf(name string) (a netip.Addr, ok bool) {
	if reverse, found := strings.CutSuffix(name, ".in-addr.arpa."); found {
		labels := strings.Split(reverse, ".")
		slices.Reverse(labels)
		a, err := netip.ParseAddr(strings.Join(labels, "."))
		return a, err == nil
	}
	reverse, found := strings.CutSuffix(name, ".ip6.arpa.")
	digits := strings.Split(reverse, ".")
	if !found || len(digits) != 32 {
		return a, false
	}
	slices.Reverse(digits)
	var text strings.Builder
	for n, digit := range digits {
		if n > 0 && n%4 == 0 {
			text.WriteByte(':')
		}
		text.WriteString(digit)
	}
	a, err := netip.ParseAddr(text.String())
	return a, err == nil
}
