package features

import (
	"net/netip"
	"os"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// A host's addresses and routes collide with the ranges of Pando, and Pando's own do not. The
// suggested ranges are free, and are ranges that a cluster takes.
func TestAddressesAndRoutesOfTheHostCollide(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("links need root")
	}
	runtime.LockOSThread() // never unlocked: the thread and its namespace end with the test
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(unix.Unshare(unix.CLONE_NEWNET))
	device := func(name string) netlink.Link {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		must(netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: name + "-end"}))
		for _, n := range []string{name + "-end", name} {
			l, err := netlink.LinkByName(n)
			must(err)
			must(netlink.LinkSetUp(l))
		}
		l, err := netlink.LinkByName(name)
		must(err)
		return l
	}
	eth, own := device("eth0"), device("pando0")
	route := func(l netlink.Link, text string, protocol netlink.RouteProtocol) *netlink.Route {
		r := &netlink.Route{LinkIndex: l.Attrs().Index, Protocol: protocol}
		if text != "" {
			var err error
			r.Dst, err = netlink.ParseIPNet(text)
			must(err)
		}
		return r
	}
	expect := func(want, flags string) {
		t.Helper()
		if got, err := Collision(); err != nil || got != want {
			t.Errorf("the collision is %q, %v; want %q", got, err, want)
		}
		if got, err := Suggest(); err != nil || got != flags {
			t.Errorf("the suggestion is %q, %v; want %q", got, err, flags)
		}
	}
	const usual = "--vips 10.127.0.0/16 --instances 10.128.0.0/10"
	must(netlink.RouteAdd(route(own, "10.127.0.0/16", 0)))
	must(netlink.RouteAdd(route(eth, "10.128.16.0/20", ownRoutes)))
	must(netlink.RouteAdd(route(eth, "0.0.0.0/0", 0)))
	must(netlink.RouteAdd(route(eth, "198.51.100.0/24", 0)))
	expect("", usual)
	cloud := route(eth, "10.128.0.0/20", 0)
	must(netlink.RouteAdd(cloud))
	expect("the route 10.128.0.0/20 goes to eth0", "--vips 10.127.0.0/16 --instances 10.192.0.0/10")
	must(netlink.RouteDel(cloud))
	addr, err := netlink.ParseAddr("10.127.3.4/32")
	must(err)
	must(netlink.AddrAdd(eth, addr))
	expect("eth0 has the address 10.127.3.4", "--vips 172.31.0.0/16 --instances 10.128.0.0/10")
	must(netlink.RouteAdd(route(eth, "10.0.0.0/8", 0)))
	expect("eth0 has the address 10.127.3.4", "--vips 172.31.0.0/16 --instances 100.64.0.0/11")
}

func TestSuggestedRangesAreRanges(t *testing.T) {
	vips, instances := pando.VIPs4, pando.Instances4
	defer func() {
		if err := pando.UseRanges(vips, instances); err != nil {
			t.Error(err)
		}
	}()
	for _, v := range otherVIPs {
		for _, i := range otherInstances {
			if err := pando.UseRanges(netip.MustParsePrefix(v), netip.MustParsePrefix(i)); err != nil {
				t.Error(err)
			}
		}
	}
}
