package arp

import (
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/clock"
)

// cable is a cable between two network namespaces: the responder's and the asker's.
type cable struct {
	t           *testing.T
	here, there netns.NsHandle
	own         net.HardwareAddr
}

// inside runs f on a thread of its own in a namespace.
func inside(t *testing.T, ns netns.NsHandle, f func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // it ends with the goroutine
		if err := netns.Set(ns); err != nil {
			done <- err
			return
		}
		f()
		done <- nil
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func newCable(t *testing.T) *cable {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	c := &cable{t: t, own: net.HardwareAddr{2, 0, 0, 0, 0, 1}}
	for _, ns := range []*netns.NsHandle{&c.here, &c.there} {
		done := make(chan error)
		go func() {
			runtime.LockOSThread()
			var err error
			*ns, err = netns.New()
			done <- err
		}()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ns.Close() })
	}
	inside(t, c.here, func() {
		veth := &netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: "eth0", HardwareAddr: c.own}, PeerName: "eth0",
			PeerNamespace: netlink.NsFd(int(c.there)),
		}
		if err := netlink.LinkAdd(veth); err != nil {
			t.Error(err)
		}
		up(t, "")
	})
	inside(t, c.there, func() { up(t, "192.0.2.9/24", "2001:db8::9/64") })
	return c
}

// up raises eth0 with addresses, and routes to the VIPs on it.
func up(t *testing.T, addresses ...string) {
	l, err := netlink.LinkByName("eth0")
	if err != nil {
		t.Error(err)
		return
	}
	for _, text := range addresses {
		if text == "" {
			continue
		}
		a, err := netlink.ParseAddr(text)
		if err == nil {
			a.Flags = unix.IFA_F_NODAD
			err = netlink.AddrAdd(l, a)
		}
		if err != nil {
			t.Error(err)
		}
	}
	if err := netlink.LinkSetUp(l); err != nil {
		t.Error(err)
	}
	if len(addresses) < 2 {
		return
	}
	for _, p := range []netip.Prefix{pando.VIPs4, pando.VIPs6} {
		dst := &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: dst}); err != nil {
			t.Error(err)
		}
	}
}

// knock makes the asker's kernel look for a VIP, and returns the MAC that it has found.
func (c *cable) knock(vip netip.Addr) (mac string) {
	inside(c.t, c.there, func() {
		if conn, err := net.Dial("udp", netip.AddrPortFrom(vip, 9).String()); err == nil {
			_, _ = conn.Write([]byte("x"))
			conn.Close()
		}
		mac = neighbour(c.t, vip)
	})
	return mac
}

func neighbour(t *testing.T, vip netip.Addr) string {
	l, err := netlink.LinkByName("eth0")
	if err != nil {
		t.Error(err)
		return ""
	}
	family := netlink.FAMILY_V4
	if vip.Is6() {
		family = netlink.FAMILY_V6
	}
	all, err := netlink.NeighList(l.Attrs().Index, family)
	if err != nil {
		t.Error(err)
	}
	for _, n := range all {
		if a, _ := netip.AddrFromSlice(n.IP); a.Unmap() == vip && n.State&netlink.NUD_FAILED == 0 {
			return n.HardwareAddr.String()
		}
	}
	return ""
}

// await waits until the asker's kernel has a MAC for a VIP.
func (c *cable) await(vip netip.Addr, want string) {
	c.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for got := ""; got != want; got = c.knock(vip) {
		if time.Now().After(deadline) {
			c.t.Fatalf("the asker found %q for %s, want %s", got, vip, want)
		}
		_ = pando.Sleep(c.t.Context(), clock.Clock{}, time.Millisecond)
	}
}

var (
	vip4 = pando.VIPs4.Addr().Next().Next()
	vip6 = pando.VIPs6.Addr().Next().Next()
)

// The kernel of another machine finds the VIPs that are accepted, by both families. It finds no
// other one. A refusal counts from the next request on.
func TestAskersFindAcceptedVIPs(t *testing.T) {
	c := newCable(t)
	var accepts atomic.Bool
	var refused atomic.Int64
	answers := func(a netip.Addr) bool {
		ok := accepts.Load() && (a == vip4 || a == vip6)
		if !ok {
			refused.Add(1)
		}
		return ok
	}
	for _, protocol := range protocols {
		var s *port
		inside(t, c.here, func() {
			var err error
			if s, err = open("eth0", protocol); err != nil {
				t.Error(err)
			}
		})
		if s != nil {
			go s.answer(t.Context(), answers) //nolint:errcheck // it ends with the test
		}
	}
	for _, vip := range []netip.Addr{vip4, vip6} {
		before := refused.Load()
		for refused.Load() == before { // the request reaches the responder, and gets no answer
			if mac := c.knock(vip); strings.Trim(mac, "0:") != "" {
				t.Fatalf("%s is at %s, although it was refused", vip, mac)
			}
		}
	}
	accepts.Store(true)
	c.await(vip4, c.own.String())
	c.await(vip6, c.own.String())
	if mac := c.knock(vip4.Next()); strings.Trim(mac, "0:") != "" {
		t.Errorf("%s is at %s", vip4.Next(), mac)
	}
}

// An announcement replaces the entry of another machine.
func TestAnnouncementsReplaceAnOlderOwner(t *testing.T) {
	c := newCable(t)
	old := net.HardwareAddr{2, 0, 0, 0, 0, 0x77}
	inside(t, c.there, func() {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			t.Error(err)
			return
		}
		for _, vip := range []netip.Addr{vip4, vip6} {
			if err := netlink.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, IP: vip.AsSlice(),
				HardwareAddr: old, State: netlink.NUD_REACHABLE}); err != nil {
				t.Error(err)
			}
		}
	})
	r := New([]string{"lo", "eth0"}, clock.Clock{}, slog.New(slog.DiscardHandler))
	for _, vip := range []netip.Addr{vip4, vip6} {
		deadline := time.Now().Add(20 * time.Second)
		for got := ""; got != c.own.String(); {
			inside(t, c.here, func() {
				if err := r.Announce([]netip.Addr{vip}); err != nil {
					t.Error(err)
				}
			})
			inside(t, c.there, func() { got = neighbour(t, vip) })
			if time.Now().After(deadline) {
				t.Fatalf("after the announcement, %s is at %s", vip, got)
			}
		}
	}
}

// Other frames get no answer: cut frames, replies, announcements, forwarded solicitations.
func TestOnlyRequestsAreRead(t *testing.T) {
	own := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	from := netip.MustParseAddr("192.0.2.9")
	ask := arp(arpRequest, everyone, make([]byte, macBytes), own, from, vip4)
	if q, ok := read(ask); !ok || q.vip != vip4 || q.from != from || q.mac.String() != own.String() {
		t.Errorf("a request is read as %+v, %v", q, ok)
	}
	solicit := advertisement(allNodesMAC, own, netip.MustParseAddr("2001:db8::9"), allNodes, 0)
	solicit[ndType] = solicitation
	copy(solicit[ndTarget:], vip6.AsSlice())
	if q, ok := read(solicit); !ok || q.vip != vip6 {
		t.Errorf("a solicitation is read as %+v, %v", q, ok)
	}
	solicit[ip6Hops] = 64
	for name, f := range map[string][]byte{
		"a cut frame":               ask[:arpBytes-1],
		"a cut solicitation":        solicit[:ndOption-1],
		"a forwarded solicitation":  solicit,
		"a reply":                   arp(arpReply, own, own, own, vip4, from),
		"an announcement":           announcement(vip4, own),
		"an announcement by IPv6":   announcement(vip6, own),
		"nothing":                   nil,
		"a frame of other contents": make([]byte, frameMax),
	} {
		if q, ok := read(f); ok {
			t.Errorf("%s is read as %+v", name, q)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add(announcement(vip4, make([]byte, macBytes)))
	f.Add(announcement(vip6, make([]byte, macBytes)))
	f.Fuzz(func(t *testing.T, b []byte) {
		if q, ok := read(b); ok && len(q.reply(make([]byte, macBytes))) < arpBytes {
			t.Errorf("the reply to %x is short", b)
		}
	})
}
