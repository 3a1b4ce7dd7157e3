package firewall

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// plainSteering steers nothing, and records the order of calls.
type plainSteering struct {
	pando.Steering
	calls []string
}

func (s *plainSteering) note(what string) error { s.calls = append(s.calls, what); return nil }

func (s *plainSteering) Connect(context.Context, pando.Link, []pando.Port, netip.Addr,
	netip.Addr) error {
	return s.note("connect")
}

func (s *plainSteering) Disconnect(context.Context, pando.Link) error {
	return s.note("disconnect")
}

func (s *plainSteering) Publish(context.Context, pando.SteeringTable) error {
	return s.note("publish")
}

func (s *plainSteering) Withdraw(context.Context, pando.ServiceKey) error {
	return s.note("withdraw")
}

func (s *plainSteering) Neighbours(context.Context, []pando.Host) error {
	return s.note("neighbours")
}

var (
	hostAddress = netip.MustParseAddr("192.0.2.1")
	otherHost   = netip.MustParseAddr("192.0.2.2")
	otherHost6  = netip.MustParseAddr("2001:db8:2::2")
	outside     = netip.MustParseAddr("203.0.113.9")
	outside6    = netip.MustParseAddr("2001:db8::9")
)

// inNetwork puts the test into a network namespace of its own with a link, and returns the link's
// index. The thread ends with the test.
func inNetwork(t *testing.T) int {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	runtime.LockOSThread() // never unlocked, so the thread and its namespace end with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	veth := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "inside"}
	veth.Name = "pd1"
	if err := netlink.LinkAdd(veth); err != nil {
		t.Fatal(err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	at, err := netlink.ParseAddr(hostAddress.String() + "/32")
	if err == nil {
		err = netlink.AddrAdd(lo, at)
	}
	link, err2 := netlink.LinkByName("pd1")
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	for _, l := range []netlink.Link{lo, link} {
		if err := netlink.LinkSetUp(l); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		if err := os.WriteFile("/proc/sys/"+name, []byte("1"), 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, all := range []string{"0.0.0.0/0", "::/0"} { // the host has a way to the Internet
		_, to, err := net.ParseCIDR(all)
		if err == nil {
			err = netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: to})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return link.Attrs().Index
}

func open(t *testing.T) (*Steering, *plainSteering, string) {
	t.Helper()
	pins := t.TempDir()
	if err := unix.Mount("bpf", pins, "bpf", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(pins, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	inner := &plainSteering{}
	w, err := Open(inner, pins)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w, inner, pins
}

// packet is one packet of an instance.
type packet struct {
	from, to     netip.Addr
	protocol     string // syn, ack, synack, udp, ping
	sport, dport uint16
}

func (p packet) bytes(t *testing.T) []byte { return p.fragment(t, 0, 0) }

// fragment returns a fragment of a datagram with a number, at a place in units of 8 bytes.
func (p packet) fragment(t *testing.T, id, at uint16) []byte {
	t.Helper()
	eth := &layers.Ethernet{SrcMAC: make(net.HardwareAddr, 6), DstMAC: make(net.HardwareAddr, 6)}
	var ip gopacket.SerializableLayer
	var inside gopacket.NetworkLayer
	protocol := layers.IPProtocolTCP
	switch p.protocol {
	case "udp":
		protocol = layers.IPProtocolUDP
	case "ping":
		protocol = layers.IPProtocolICMPv4
	case "gre":
		protocol = layers.IPProtocolGRE
	}
	if p.to.Is4() {
		four := &layers.IPv4{Version: 4, IHL: 5, TTL: 64, Protocol: protocol, Id: id,
			SrcIP: p.from.AsSlice(), DstIP: p.to.AsSlice(), FragOffset: at}
		if id != 0 && at == 0 {
			four.Flags = layers.IPv4MoreFragments
		}
		eth.EthernetType, ip, inside = layers.EthernetTypeIPv4, four, four
	} else {
		six := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: protocol,
			SrcIP: p.from.AsSlice(), DstIP: p.to.AsSlice()}
		eth.EthernetType, ip, inside = layers.EthernetTypeIPv6, six, six
	}
	var l4 gopacket.SerializableLayer
	switch p.protocol {
	case "udp":
		udp := &layers.UDP{SrcPort: layers.UDPPort(p.sport), DstPort: layers.UDPPort(p.dport)}
		_ = udp.SetNetworkLayerForChecksum(inside)
		l4 = udp
	case "ping":
		l4 = &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(layers.ICMPv4TypeEchoRequest, 0)}
	default:
		tcp := &layers.TCP{SrcPort: layers.TCPPort(p.sport), DstPort: layers.TCPPort(p.dport),
			SYN: p.protocol != "ack", ACK: p.protocol != "syn"}
		_ = tcp.SetNetworkLayerForChecksum(inside)
		l4 = tcp
	}
	out := gopacket.NewSerializeBuffer()
	options := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	err := gopacket.SerializeLayers(out, options, eth, ip, l4, gopacket.Payload("some text"))
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// passes reports whether the program lets a packet of a link through to steering.
func passes(t *testing.T, w *Steering, ifindex int, p packet) bool {
	t.Helper()
	return passesRaw(t, w, ifindex, p.bytes(t))
}

func passesRaw(t *testing.T, w *Steering, ifindex int, data []byte) bool {
	t.Helper()
	const size, ifindexAt, next = 192, 40, 0xffffffff
	skb := make([]byte, size)
	binary.NativeEndian.PutUint32(skb[ifindexAt:], uint32(ifindex))
	verdict, err := w.objects.FromWalled.Run(&ebpf.RunOptions{
		Data: data, DataOut: make([]byte, 256), Context: skb,
	})
	if err != nil {
		t.Fatal(err)
	}
	return verdict == next
}

// newFlow is a packet of an instance, and the word of its spec without which it is refused.
type newFlow struct {
	name  string
	p     packet
	needs pando.Reach // "": it always passes; nobody: never
}

// nobody is a word that no spec has.
const nobody pando.Reach = "nobody"

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func flowsOf(link pando.Link) []newFlow {
	return []newFlow{
		{"a service of the tenant", packet{link.IP4, addr("10.127.0.3"), "syn", 5, 80}, ""},
		{"a service of another", packet{link.IP4, addr("10.127.0.4"), "syn", 5, 80}, pando.ReachTenants},
		{"an unknown VIP", packet{link.IP4, addr("10.127.9.9"), "syn", 5, 80}, ""},
		{"DNS", packet{link.IP4, pando.Gateway4, "udp", 5, 53}, ""},
		{"DNS by TCP", packet{link.IP4, pando.Gateway4, "syn", 5, 53}, ""},
		{"another port there", packet{link.IP4, pando.Gateway4, "syn", 5, 7400}, pando.ReachHost},
		{"a fellow", packet{link.IP4, addr("10.128.0.3"), "syn", 5, 8080}, ""},
		{"a stranger", packet{link.IP4, addr("10.129.3.4"), "syn", 5, 8080}, pando.ReachTenants},
		{"a stranger by UDP", packet{link.IP4, addr("10.129.3.4"), "udp", 5, 9}, pando.ReachTenants},
		{"an answer", packet{link.IP4, addr("10.129.3.4"), "udp", 7007, 9}, ""},
		{"metadata", packet{link.IP4, addr("169.254.169.254"), "syn", 5, 80}, pando.ReachMetadata},
		{"the host", packet{link.IP4, hostAddress, "syn", 5, 22}, pando.ReachHost},
		{"the host by UDP", packet{link.IP4, hostAddress, "udp", 5, 123}, pando.ReachHost},
		{"a ping of the host", packet{link.IP4, hostAddress, "ping", 0, 0}, ""},
		{"a reply to a probe", packet{link.IP4, hostAddress, "synack", 8080, 5}, ""},
		{"an established flow", packet{link.IP4, hostAddress, "ack", 8080, 5}, ""},
		{"a control port", packet{link.IP4, otherHost, "syn", 5, 7402}, pando.ReachHost},
		{"another host", packet{link.IP4, otherHost, "syn", 5, 5432}, pando.ReachHost},
		{"its probes", packet{link.IP4, otherHost, "udp", 5, pando.LivenessPort}, pando.ReachHost},
		{"its first port", packet{link.IP4, otherHost, "udp", 5, 1}, pando.ReachHost},
		{"another protocol there", packet{link.IP4, otherHost, "gre", 0, 0}, pando.ReachHost},
		{"another protocol outside", packet{link.IP4, outside, "gre", 0, 0}, pando.ReachInternet},
		{"another host, IPv6", packet{link.IP6, otherHost6, "syn", 5, 2222}, pando.ReachHost},
		{"its probes, IPv6", packet{link.IP6, otherHost6, "udp", 5, pando.LivenessPort},
			pando.ReachHost},
		{"a ping of another host", packet{link.IP4, otherHost, "ping", 0, 0}, ""},
		{"a reply to another host", packet{link.IP4, otherHost, "synack", 8080, 5}, ""},
		{"an answer to another host", packet{link.IP4, otherHost, "udp", 7007, 9}, ""},
		{"an answer to a tunnel", packet{link.IP4, otherHost, "udp", 7007, pando.TunnelPort}, nobody},
		{"a tunnel", packet{link.IP4, otherHost, "udp", 5, pando.TunnelPort}, nobody},
		{"a tunnel, IPv6", packet{link.IP6, otherHost6, "udp", 5, pando.TunnelPort}, nobody},
		{"its own tunnel", packet{link.IP4, hostAddress, "udp", 7007, pando.TunnelPort}, nobody},
		{"another server", packet{link.IP4, otherHost, "syn", 5, pando.TunnelPort}, pando.ReachHost},
		{"an answer to probes", packet{link.IP6, otherHost6, "udp", 7007, pando.LivenessPort},
			pando.ReachHost},
		{"an answer to such a port outside", packet{link.IP4, outside, "udp", 7007, pando.TunnelPort},
			pando.ReachInternet},
		{"the Internet", packet{link.IP4, outside, "syn", 5, 443}, pando.ReachInternet},
		{"a reply of the VIP", packet{addr("10.127.0.2"), hostAddress, "syn", 80, 5}, ""},
		{"the Internet, IPv6", packet{link.IP6, outside6, "syn", 5, 443}, pando.ReachInternet},
		{"metadata, IPv6", packet{link.IP6, addr("fd00:ec2::254"), "syn", 5, 80}, pando.ReachMetadata},
		{"a stranger, IPv6", packet{link.IP6, link.IP6.Next(), "udp", 5, 80}, pando.ReachTenants},
	}
}

func TestWallsRefuseNewFlowsOnly(t *testing.T) {
	ifindex := inNetwork(t)
	w, inner, pins := open(t)
	key := func(tenant, name string) pando.ServiceKey {
		return pando.ServiceKey{Tenant: pando.Tenant(tenant), Name: pando.ServiceName(name)}
	}
	_, six := pando.InstanceRange(0)
	link := pando.Link{IP4: addr("10.128.0.2"), IP6: six.Addr().Next().Next(),
		IfIndex: ifindex, Host: "pd1", Service: key("default", "web")}
	ports := []pando.Port{{Published: 7, Target: 7007, Protocol: pando.UDP},
		{Published: 80, Target: 8080, Protocol: pando.TCP}}
	for n, s := range []pando.ServiceKey{key("default", "api"), key("bank", "vault")} {
		err := w.Publish(t.Context(), pando.SteeringTable{Service: s,
			VIP4: addr("10.127.0." + strconv.Itoa(n+3))})
		if err != nil {
			t.Fatal(err)
		}
	}
	others := []pando.Host{{Name: "host2", Address: otherHost, Address6: otherHost6}}
	if err := w.Neighbours(t.Context(), others); err != nil {
		t.Fatal(err)
	}
	fellow := addr("10.128.0.3")
	if err := w.objects.Owners.Put(keyOf(fellow), owner(link.Service)); err != nil {
		t.Fatal(err)
	}
	for _, c := range flowsOf(link) {
		for _, r := range append([]pando.Reach{""}, pando.Reachables...) {
			link.Reach = []pando.Reach{pando.ReachTenant}
			if r != "" {
				link.Reach = append(link.Reach, r)
			}
			if err := w.objects.Walls.Put(uint32(ifindex), walls(link, ports)); err != nil {
				t.Fatal(err)
			}
			want := c.needs == "" || c.needs == r
			if got := passes(t, w, ifindex, c.p); got != want {
				t.Errorf("%s with reach %v: passes %t", c.name, link.Reach, got)
			}
		}
	}
	lives(t, w, inner, pins, link, ports)
}

// A tenant reaches the published ports of instances that its sockets go straight to, on all hosts.
func TestWallsOpenTheWaysStraight(t *testing.T) {
	ifindex := inNetwork(t)
	w, _, _ := open(t)
	_, six := pando.InstanceRange(0)
	link := pando.Link{IP4: addr("10.128.0.2"), IP6: six.Addr().Next().Next(), IfIndex: ifindex,
		Host: "pd1", Service: pando.DefaultService("web"), Reach: []pando.Reach{pando.ReachTenant}}
	if err := w.objects.Walls.Put(uint32(ifindex), walls(link, nil)); err != nil {
		t.Fatal(err)
	}
	here, there, vault := addr("10.128.0.3"), addr("10.128.16.4"), addr("10.128.0.5")
	table := func(s pando.ServiceKey, at pando.BalanceAt, e ...pando.Endpoint) {
		t.Helper()
		err := w.Publish(t.Context(), pando.SteeringTable{Service: s, At: at, Endpoints: e,
			Ports: []pando.Port{{Published: 80, Target: 8080, Protocol: pando.TCP}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	api := []pando.Endpoint{{Instance: "api-1", Link: pando.Link{IP4: here}},
		{Instance: "api-2", Remote: otherHost, Own4: there}}
	check := func(when string, want map[netip.AddrPort]bool) {
		t.Helper()
		for to, want := range want {
			p := packet{link.IP4, to.Addr(), "syn", 5, to.Port()}
			if got := passes(t, w, ifindex, p); got != want {
				t.Errorf("%s, to %s: passes %t", when, to, got)
			}
		}
	}
	at := netip.AddrPortFrom
	table(pando.ServiceKey{Tenant: "bank", Name: "vault"}, pando.AtConnect,
		pando.Endpoint{Instance: "vault-1", Link: pando.Link{IP4: vault}})
	table(pando.DefaultService("api"), pando.AtConnect, api...)
	check("at connect", map[netip.AddrPort]bool{at(here, 8080): true, at(there, 8080): true,
		at(here, 22): false, at(vault, 8080): false})
	table(pando.DefaultService("api"), pando.AtConnect, api[1])
	check("one is gone", map[netip.AddrPort]bool{at(here, 8080): false, at(there, 8080): true})
	table(pando.DefaultService("api"), pando.AtPacket, api...)
	check("at packet", map[netip.AddrPort]bool{at(here, 8080): false, at(there, 8080): false})
}

// lives checks the walls over the lives of an instance and of agents.
func lives(t *testing.T, w *Steering, inner *plainSteering, pins string, link pando.Link,
	ports []pando.Port) {
	t.Helper()
	link.Reach = nil
	if err := w.Prepare(link); err != nil {
		t.Fatal(err)
	}
	for range 2 { // a second time by the next agent
		if err := w.Connect(t.Context(), link, ports, netip.Addr{}, netip.Addr{}); err != nil {
			t.Fatal(err)
		}
		next, err := Open(inner, pins)
		if err != nil {
			t.Fatal(err)
		}
		if passes(t, next, link.IfIndex, packet{link.IP4, hostAddress, "syn", 5, 22}) {
			t.Error("the walls fall with the agent")
		}
		if n, err := next.Refused(); err != nil || n != 1 {
			t.Errorf("%d refused, %v", n, err)
		}
		if err := next.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := w.Withdraw(t.Context(), pando.ServiceKey{Tenant: "bank", Name: "vault"}); err != nil {
		t.Error(err)
	}
	vip := packet{link.IP4, netip.MustParseAddr("10.127.0.4"), "syn", 5, 80}
	if !passes(t, w, link.IfIndex, vip) {
		t.Error("a withdrawn service has an owner")
	}
	if err := w.Disconnect(t.Context(), link); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(w.links); err != nil || len(left) > 0 {
		t.Errorf("%v, %v are left", left, err)
	}
	forgets(t, w, inner, pins, link)
}

// forgets checks that a host that left while no agent ran is no host to the next agent.
func forgets(t *testing.T, w *Steering, inner *plainSteering, pins string, link pando.Link) {
	t.Helper()
	link.Reach = []pando.Reach{pando.ReachInternet}
	if err := w.objects.Walls.Put(uint32(link.IfIndex), walls(link, nil)); err != nil {
		t.Fatal(err)
	}
	to := packet{link.IP4, otherHost, "syn", 5, 5432}
	if passes(t, w, link.IfIndex, to) {
		t.Error("another host is the Internet")
	}
	next, err := Open(inner, pins)
	if err != nil {
		t.Fatal(err)
	}
	if err := next.Neighbours(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if !passes(t, next, link.IfIndex, to) {
		t.Error("a host that left is still a host to the next agent")
	}
	if err := next.Close(); err != nil {
		t.Error(err)
	}
}

func TestOwnersAreTheSameInEveryLife(t *testing.T) {
	a := owner(pando.ServiceKey{Tenant: "shop", Name: "web"})
	b := owner(pando.ServiceKey{Tenant: "shop", Name: "db"})
	c := owner(pando.ServiceKey{Tenant: "bank", Name: "web"})
	if a.Tenant != b.Tenant || a.Service == b.Service || a.Tenant == c.Tenant ||
		a.Service == c.Service {
		t.Errorf("%+v, %+v, %+v", a, b, c)
	}
	if again := owner(pando.ServiceKey{Tenant: "shop", Name: "web"}); again != a {
		t.Errorf("%+v, then %+v", a, again)
	}
}

func keyOf(a netip.Addr) [4]uint32 { return key(a) }

// A later fragment is judged as the first one of its datagram: it has no ports of its own.
func TestLaterFragmentsAreJudgedAsTheirFirst(t *testing.T) {
	ifindex := inNetwork(t)
	w, _, _ := open(t)
	link := pando.Link{IP4: addr("10.128.0.2"), IfIndex: ifindex, Host: "pd1",
		Service: pando.DefaultService("web"), Reach: []pando.Reach{pando.ReachTenant}}
	ports := []pando.Port{{Published: 7, Target: 7007, Protocol: pando.UDP}}
	if err := w.objects.Walls.Put(uint32(ifindex), walls(link, ports)); err != nil {
		t.Fatal(err)
	}
	stranger := addr("10.129.3.4")
	for n, c := range []struct {
		name   string
		to     netip.Addr
		sport  uint16
		dport  uint16
		passes bool
	}{
		{"an answer", stranger, 7007, 9, true},
		{"a new flow", stranger, 5, 9, false},
		{"a question to the name server", pando.Gateway4, 5, 53, true},
		{"another port of the gateway", pando.Gateway4, 5, 7400, false},
	} {
		p, id := packet{link.IP4, c.to, "udp", c.sport, c.dport}, uint16(n+1)
		first, later, other := p.fragment(t, id, 0), p.fragment(t, id, 185), p.fragment(t, 1000, 185)
		if passesRaw(t, w, ifindex, later) {
			t.Errorf("%s: a later fragment passes before its first", c.name)
		}
		if got := passesRaw(t, w, ifindex, first); got != c.passes {
			t.Errorf("%s: the first fragment passes: %t", c.name, got)
		}
		for range 2 {
			if got := passesRaw(t, w, ifindex, later); got != c.passes {
				t.Errorf("%s: a later fragment passes: %t", c.name, got)
			}
		}
		if passesRaw(t, w, ifindex, other) {
			t.Errorf("%s: a fragment of another datagram passes", c.name)
		}
	}
}
