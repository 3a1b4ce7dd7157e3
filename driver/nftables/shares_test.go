package nftables

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/access/share"
)

// wire is a host whose instances are behind a TUN device, and whose outside is a device that takes
// everything.
type wire struct {
	*testing.T
	tun *os.File
	sum int
}

func newWire(t *testing.T, four, six netip.Prefix) *wire {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	device := func(name string) *os.File {
		tun, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
		must(err)
		t.Cleanup(func() { tun.Close() })
		request, err := unix.NewIfreq(name)
		must(err)
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		must(unix.IoctlIfreq(int(tun.Fd()), unix.TUNSETIFF, request))
		return tun
	}
	tun, _ := device("inside"), device("outside") // nobody reads the outside: its packets are lost
	for name, to := range map[string][]string{"inside": {four.String(), six.String()},
		"outside": {"198.51.100.0/24", "2001:db8::/64"}} {
		link, err := netlink.LinkByName(name)
		must(err)
		must(netlink.LinkSetUp(link))
		for _, r := range to {
			_, dst, err := net.ParseCIDR(r)
			must(err)
			must(netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: dst}))
		}
	}
	out, err := netlink.LinkByName("outside")
	must(err)
	for _, a := range []string{"198.51.100.1/24", "2001:db8::1/64"} {
		address, err := netlink.ParseAddr(a)
		must(err)
		address.Flags = unix.IFA_F_NODAD
		must(netlink.AddrAdd(out, address))
	}
	for _, name := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		must(os.WriteFile("/proc/sys/net/"+name, []byte("1"), 0))
	}
	return &wire{T: t, tun: tun}
}

// send sends packets of UDP from an instance to the outside, each of another port.
func (w *wire) send(from netip.Addr, first, n int) {
	w.Helper()
	for port := first; port < first+n; port++ {
		udp := &layers.UDP{SrcPort: layers.UDPPort(port), DstPort: 53}
		var ip gopacket.SerializableLayer
		var network gopacket.NetworkLayer
		if from.Is4() {
			h := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: from.AsSlice(),
				DstIP: net.IP{198, 51, 100, 9}}
			ip, network = h, h
		} else {
			h := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolUDP,
				SrcIP: from.AsSlice(), DstIP: net.ParseIP("2001:db8::9")}
			ip, network = h, h
		}
		if err := udp.SetNetworkLayerForChecksum(network); err != nil {
			w.Fatal(err)
		}
		b := gopacket.NewSerializeBuffer()
		options := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
		if err := gopacket.SerializeLayers(b, options, ip, udp, gopacket.Payload("x")); err != nil {
			w.Fatal(err)
		}
		if _, err := w.tun.Write(b.Bytes()); err != nil {
			w.Fatal(err)
		}
	}
}

// bare sends packets without a transport header, each to another address.
func (w *wire) bare(from netip.Addr, n int) {
	w.Helper()
	for at := range n {
		dst := make(net.IP, 4)
		binary.BigEndian.PutUint32(dst, 0xc6336400+uint32(at%250)+2) // 198.51.100.x
		h := &layers.IPv4{Version: 4, TTL: 64, Protocol: 59, SrcIP: from.AsSlice(), DstIP: dst}
		b := gopacket.NewSerializeBuffer()
		options := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
		if err := gopacket.SerializeLayers(b, options, h); err != nil {
			w.Fatal(err)
		}
		if _, err := w.tun.Write(b.Bytes()); err != nil {
			w.Fatal(err)
		}
	}
}

// tracked counts the connections of instances that the kernel tracks.
func (w *wire) tracked(from ...netip.Addr) (n int) {
	w.Helper()
	for _, f := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		all, err := netlink.ConntrackTableList(netlink.ConntrackTable, f)
		if err != nil {
			w.Fatal(err)
		}
		for _, c := range all {
			at, _ := netip.AddrFromSlice(c.Forward.SrcIP)
			for _, a := range from {
				if at.Unmap() == a {
					n++
				}
			}
		}
	}
	return n
}

// One tenant fills its share with several instances, of both families. Another tenant and the
// operators still open connections.
func TestATenantCannotTakeTheTrackedConnectionsOfOthers(t *testing.T) {
	inOwnNetwork(t, func() {
		four, six := pando.InstanceRange(3)
		at := func(p netip.Prefix, n int) netip.Addr {
			a := p.Addr()
			for range n {
				a = a.Next()
			}
			return a
		}
		link := func(n int) pando.Link { return pando.Link{IP4: at(four, n), IP6: at(six, n)} }
		w := newWire(t, four, six)
		if err := Translate(four, six); err != nil {
			t.Error(err)
			return
		}
		bound := share.Bound{Total: 400, Each: 100, Reserve: 150} // 250 for all tenants
		s, err := ShareConnections(four, six, bound)
		if err != nil {
			t.Error(err)
			return
		}
		for n, tenant := range []pando.Tenant{"", "acme", "acme", "bank", "coop", pando.DefaultTenant} {
			if tenant != "" {
				if err := s.Charge(link(n), tenant); err != nil {
					t.Errorf("charge %s: %v", tenant, err)
					return
				}
			}
		}
		of := func(n int) int { return w.tracked(at(four, n), at(six, n)) }
		between := func(what string, got, least, most int) {
			t.Helper()
			if got < least || got > most {
				t.Errorf("%s has %d connections, want %d to %d\n%s", what, got, least, most, rules(t))
			}
		}
		w.send(at(four, 1), 1000, 120)
		w.send(at(six, 2), 1000, 120)
		between("acme", of(1)+of(2), 95, 101)
		w.bare(at(four, 1), 200)
		between("acme, by packets without ports", of(1)+of(2), 95, 101)
		w.send(at(four, 3), 1000, 50)
		between("bank", of(3), 50, 50)
		w.send(at(four, 0), 1000, 30) // its tenant is not known yet
		between("an instance that just began", of(0), 30, 30)
		w.send(at(four, 4), 1000, 120)
		between("all tenants", of(0)+of(1)+of(2)+of(3)+of(4), 235, 251)
		w.send(at(four, 5), 1000, 140)
		between("the operators", of(5), 140, 140)

		again, err := ShareConnections(four, six, bound) // the next agent
		if len(again.at) != 10 || again.at[at(six, 2)] != chainOf {
			t.Errorf("the next agent finds %v", again.at)
		}
		if err != nil {
			t.Error(err)
			return
		}
		w.send(at(four, 1), 5000, 50)
		between("acme, after a restart", of(1)+of(2), 95, 101)
		if err := again.Charge(link(1), pando.DefaultTenant); err != nil { // a new owner of the address
			t.Error(err)
		}
		before := of(1)
		w.send(at(four, 1), 6000, 20)
		between("the address of operators now", of(1)-before, 20, 20)
		if err := again.Forget(link(1)); err != nil {
			t.Error(err)
		}
		if got := rules(t); strings.Contains(got, at(four, 1).String()+",") {
			t.Errorf("a forgotten address stays:\n%s", got)
		}
		if err := Purge(); err != nil {
			t.Error(err)
		}
		if got := rules(t); got != "" {
			t.Errorf("left:\n%s", got)
		}
	})
}
