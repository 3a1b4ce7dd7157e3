package features

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"pando.run/pando"
)

// The ranges that Suggest chooses from, the best first. A private network rarely has all of them.
var (
	otherVIPs      = []string{"10.127.0.0/16", "172.31.0.0/16", "100.127.0.0/16", "192.168.0.0/16"}
	otherInstances = []string{"10.128.0.0/10", "10.192.0.0/10", "10.0.0.0/10", "100.64.0.0/11",
		"172.16.0.0/13"}
)

// ownRoutes is the protocol of Pando's routes to other hosts (driver/network/ebpf).
const ownRoutes = 112

// taken is a range of IPv4 addresses that this host uses without Pando.
type taken struct {
	netip.Prefix
	what string // "the route 10.128.0.0/20 goes to eth0"
}

// takenRanges returns the addresses and the routes of this host that are not Pando's. A default
// route takes nothing.
func takenRanges() (out []taken, err error) {
	links, err := Dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list the links: %w", err)
	}
	names := map[int]string{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	addrs, err := Dump(func() ([]netlink.Addr, error) {
		return netlink.AddrList(nil, netlink.FAMILY_V4)
	})
	if err != nil {
		return nil, fmt.Errorf("list the addresses: %w", err)
	}
	for _, a := range addrs {
		ip, ok := netip.AddrFromSlice(a.IP.To4())
		if name := names[a.LinkIndex]; ok && !ours(name) {
			what := fmt.Sprintf("%s has the address %s", name, ip)
			out = append(out, taken{netip.PrefixFrom(ip, 32), what})
		}
	}
	routes, err := Dump(func() ([]netlink.Route, error) {
		return netlink.RouteList(nil, netlink.FAMILY_V4)
	})
	if err != nil {
		return nil, fmt.Errorf("list the routes: %w", err)
	}
	for _, r := range routes {
		if r.Dst == nil || r.Dst.IP.IsUnspecified() || r.Protocol == ownRoutes {
			continue
		}
		p, err := netip.ParsePrefix(r.Dst.String())
		if name := names[r.LinkIndex]; err == nil && !ours(name) {
			out = append(out, taken{p, fmt.Sprintf("the route %s goes to %s", p, name)})
		}
	}
	return out, nil
}

// Collision returns the first address or route of this host in the ranges of Pando, or "".
func Collision() (string, error) {
	all, err := takenRanges()
	for _, t := range all {
		if t.Overlaps(pando.VIPs4) || t.Overlaps(pando.Instances4) {
			return t.what, nil
		}
	}
	return "", err
}

// Suggest returns the flags of `pando up` for ranges that are free on this host.
func Suggest() (string, error) {
	all, err := takenRanges()
	if err != nil {
		return "", err
	}
	var flags []string
	for _, o := range []struct {
		flag  string
		known []string
	}{{"--vips", otherVIPs}, {"--instances", otherInstances}} {
		n := slices.IndexFunc(o.known, func(text string) bool {
			p := netip.MustParsePrefix(text)
			return !slices.ContainsFunc(all, func(t taken) bool { return t.Overlaps(p) })
		})
		if n < 0 {
			flags = append(flags, o.flag+" RANGE")
		} else {
			flags = append(flags, o.flag+" "+o.known[n])
		}
	}
	return strings.Join(flags, " "), nil
}

// tryAddresses looks for foreign addresses and routes in the ranges of Pando.
func tryAddresses(Config) (string, error) {
	what, err := Collision()
	if err == nil && what != "" {
		err = fmt.Errorf("%s", what)
	}
	return "free", err
}

// ours reports whether Pando made a device: pando0, or the end of an instance's link (pd12).
func ours(name string) bool {
	rest, ok := strings.CutPrefix(name, "pd")
	return strings.HasPrefix(name, "pando") || ok && strings.Trim(rest, "0123456789") == ""
}
