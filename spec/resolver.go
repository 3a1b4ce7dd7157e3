package spec

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"pando.run/pando"
)

const (
	umaskPattern  = `^0?[0-7]{1,3}$`
	cpusetPattern = `^[0-9]{1,4}(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?)*$`
	// domainPattern is a domain of a search list; "." searches none.
	domainPattern    = `^(\.|_?[A-Za-z0-9-]+(\._?[A-Za-z0-9-]+)*\.?)$`
	dnsOptionPattern = `^[a-z][a-z0-9-]*(:[0-9]{1,3})?$`
	// resolverBytesMax bounds a line of resolv.conf, as the C library does.
	resolverBytesMax = 256
)

var (
	isUmask     = regexp.MustCompile(umaskPattern).MatchString
	isCPUSet    = regexp.MustCompile(cpusetPattern).MatchString
	isDomain    = regexp.MustCompile(domainPattern).MatchString
	isDNSOption = regexp.MustCompile(dnsOptionPattern).MatchString

	umaskKind = textKind(umaskPattern, "octal digits such as 0027", []any{"string", "integer"},
		func(s string) (any, error) { return s, nil })
	cpusetKind = textKind(cpusetPattern, "numbers of processors such as 0-3,7",
		[]any{"string", "integer"}, func(s string) (any, error) { return s, nil })
	resolversKind = listKind("[192.0.2.53]", map[string]any{"type": "string"},
		func(s string) (string, error) { return s, CheckResolver(s) })
	domainsKind = listKind("[corp.example]", map[string]any{"type": "string", "pattern": domainPattern},
		matching(isDomain, "want a domain such as corp.example"))
	dnsOptionsKind = listKind(`["ndots:2"]`,
		map[string]any{"type": "string", "pattern": dnsOptionPattern},
		matching(isDNSOption, "want an option of resolv.conf such as ndots:2"))
)

// own6 has the IPv6 addresses of VIPs and instances.
var own6 = netip.PrefixFrom(pando.VIPs6.Addr(), 48).Masked()

func matching(ok func(string) bool, want string) func(string) (string, error) {
	return func(s string) (string, error) {
		if !ok(s) {
			return "", fmt.Errorf("%w: %s", pando.ErrInvalid, want)
		}
		return s, nil
	}
}

// CheckResolver returns nil for the address of a resolver that the host of an instance may ask for it.
// An instance reaches neither the host itself nor the links of the host, and services of other
// tenants only by the walls.
func CheckResolver(s string) error {
	a, err := netip.ParseAddr(s)
	switch {
	case err != nil || a.Zone() != "":
		return fmt.Errorf("%w: want an address such as 192.0.2.53", pando.ErrInvalid)
	case !a.IsGlobalUnicast() || a.Is4In6() || pando.VIPs4.Contains(a) || pando.Instances4.Contains(a) ||
		own6.Contains(a):
		return fmt.Errorf("%w: %s: want a resolver beyond the hosts: Pando answers the names of services, "+
			"and asks the host's own resolver for others", pando.ErrInvalid, s)
	}
	return nil
}

// resolverProblems returns what is wrong with `dns`, `dns_search` and `dns_opt` of a spec.
func resolverProblems(s pando.Spec) (out []string) {
	for _, l := range []struct {
		word  string
		list  []string
		check func(string) error
	}{
		{"dns", s.DNS, CheckResolver},
		{"dns_search", s.DNSSearch, func(s string) error {
			_, err := matching(isDomain, "want a domain")(s)
			return err
		}},
		{"dns_opt", s.DNSOptions, func(s string) error {
			_, err := matching(isDNSOption, "want an option")(s)
			return err
		}},
	} {
		if len(l.list) > pando.DNSMax || len(strings.Join(l.list, " ")) > resolverBytesMax {
			out = append(out, fmt.Sprintf("%s: want at most %d, of %d bytes together", l.word,
				pando.DNSMax, resolverBytesMax))
		}
		for _, one := range l.list {
			if err := l.check(one); err != nil {
				out = append(out, fmt.Sprintf("%s: %q: %v", l.word, one, err))
			}
		}
	}
	if len(s.DNS) > 0 && len(s.Reach) > 0 && !slices.Contains(s.Reach, pando.ReachInternet) {
		out = append(out, "dns: `reach` has no internet, so other resolvers are out of reach: leave one "+
			"of them out")
	}
	return out
}
