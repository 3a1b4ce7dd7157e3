package nat

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

// shared is a host with instances of several tenants: number 0 has just begun, 1 and 2 are of acme, 3
// of bank, 4 of coop and 5 of operators.
type shared struct {
	*wire
	four, six netip.Prefix
	bound     share.Bound
}

func (s shared) at(p netip.Prefix, n int) netip.Addr {
	a := p.Addr()
	for range n {
		a = a.Next()
	}
	return a
}

func (s shared) link(n int) pando.Link { return pando.Link{IP4: s.at(s.four, n), IP6: s.at(s.six, n)} }

// of returns the connections of instances.
func (s shared) of(all ...int) (n int) {
	for _, i := range all {
		n += s.tracked(s.at(s.four, i), s.at(s.six, i))
	}
	return n
}

func (s shared) between(what string, got, least, most int) {
	s.Helper()
	if got < least || got > most {
		s.Errorf("%s has %d connections, want %d to %d\n%s", what, got, least, most, rules(s.T))
	}
}

// onShared runs a test on such a host.
func onShared(t *testing.T, test func(s shared, shares *Shares)) {
	inOwnNetwork(t, func() {
		four, six := pando.InstanceRange(3)
		s := shared{newWire(t, four, six), four, six,
			share.Bound{Total: 400, Each: 100, Reserve: 150}} // 250 for all tenants
		if err := Translate(four, six); err != nil {
			t.Error(err)
			return
		}
		shares, err := ShareConnections(four, six, s.bound)
		if err != nil {
			t.Error(err)
			return
		}
		for n, tenant := range []pando.Tenant{"", "acme", "acme", "bank", "coop", pando.DefaultTenant} {
			if tenant == "" {
				continue
			}
			if err := shares.Charge(s.link(n), tenant); err != nil {
				t.Errorf("charge %s: %v", tenant, err)
				return
			}
		}
		test(s, shares)
	})
}

// One tenant fills its share with several instances, of both families. Another tenant and the
// operators still open connections.
func TestATenantCannotTakeTheTrackedConnectionsOfOthers(t *testing.T) {
	onShared(t, func(s shared, _ *Shares) {
		s.send(s.at(s.four, 1), 1000, 120)
		s.send(s.at(s.six, 2), 1000, 120)
		s.between("acme", s.of(1, 2), 95, 101)
		s.bare(s.at(s.four, 1), 200)
		s.between("acme, by packets without ports", s.of(1, 2), 95, 101)
		s.send(s.at(s.four, 3), 1000, 50)
		s.between("bank", s.of(3), 50, 50)
		s.send(s.at(s.four, 0), 1000, 30) // its tenant is not known yet
		s.between("an instance that just began", s.of(0), 30, 30)
		s.send(s.at(s.four, 4), 1000, 120)
		s.between("all tenants", s.of(0, 1, 2, 3, 4), 235, 251)
		s.send(s.at(s.four, 5), 1000, 140)
		s.between("the operators", s.of(5), 140, 140)
	})
}

// A share lasts over the agent. An address of another owner counts for that one, and nothing is left.
func TestTheSharesOfConnectionsLast(t *testing.T) {
	onShared(t, func(s shared, _ *Shares) {
		s.send(s.at(s.four, 1), 1000, 120)
		again, err := ShareConnections(s.four, s.six, s.bound) // the next agent
		if err != nil {
			t.Error(err)
			return
		}
		if len(again.at) != 10 || again.at[s.at(s.six, 2)] != chainOf {
			t.Errorf("the next agent finds %v", again.at)
		}
		s.send(s.at(s.four, 1), 5000, 50)
		s.between("acme, after a restart", s.of(1, 2), 95, 101)
		if err := again.Charge(s.link(1), pando.DefaultTenant); err != nil { // a new owner of the address
			t.Error(err)
		}
		before := s.of(1)
		s.send(s.at(s.four, 1), 6000, 20)
		s.between("the address of operators now", s.of(1)-before, 20, 20)
		if err := again.Forget(s.link(1)); err != nil {
			t.Error(err)
		}
		if got := rules(t); strings.Contains(got, s.at(s.four, 1).String()+",") {
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
