package steering

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pando.run/pando"
)

func isTooLarge(err error) bool { return errors.Is(err, pando.ErrTooLarge) }

// flood sends packets with these flags from random addresses to a VIP.
func (s *stand) flood(
	t *testing.T, random *rand.Rand, to netip.AddrPort, flags string, packets int,
) {
	t.Helper()
	for range packets {
		from := netip.AddrFrom4([4]byte{198, 18, byte(random.Uint32()), byte(random.Uint32())})
		if to.Addr().Is6() {
			from = netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 9, 14: byte(random.Uint32()),
				15: byte(random.Uint32())})
		}
		p := tcp(netip.AddrPortFrom(from, uint16(1024+random.IntN(60000))), to, flags)
		_, err := s.Try(Outside, s.outside.Link,
			p.Bytes(s.outside.Link.MAC, s.outside.Link.HostMAC), false)
		check(t, err)
	}
}

// TestAFloodBreaksNoConnection floods one service with SYNs, with ACKs of no connection, and with
// both, many times the size of the connection table. Meanwhile tables change, so that no table
// restores a lost flow. No connection of any service breaks, and new ones are served.
func TestAFloodBreaksNoConnection(t *testing.T) {
	const flows = 1 << 13
	s := newStand(t, func(t *testing.T, uplinks ...string) Subject {
		return openSize(t, flows, uplinks...)
	}, "a", "b")
	for name, b := range s.boxes {
		serve(t, b, name)
	}
	s.publish(t, s.endpoint("a", 100), s.endpoint("b", 100))
	flooded := pando.SteeringTable{Service: quiet, VIP4: other[0], VIP6: other[1], Ports: webPorts,
		Endpoints: []pando.Endpoint{s.endpoint("a", 100)}}
	flooded.Endpoints[0].Instance = "flooded"
	check(t, s.Publish(t.Context(), flooded))
	open := map[*client]string{}
	for n := range 100 {
		c := dialFrom(t, s.outside, netip.AddrPortFrom(vip[n%2], 80))
		open[c] = c.who(t)
	}
	broken, random := 0, rand.New(rand.NewPCG(1, 2))
	for round := range 8 {
		for six := range 2 {
			for _, to := range []netip.Addr{other[six], vip[six]} {
				s.flood(t, random, netip.AddrPortFrom(to, 80), "S", flows)
				s.flood(t, random, netip.AddrPortFrom(to, 80), "A", flows/4)
			}
		}
		s.publish(t, s.endpoint("a", 1+199*(round%2)), s.endpoint("b", 200-199*(round%2)))
		for c, was := range open {
			if who, err := c.ask("who"); err != nil || who != was {
				broken++
				c.Close()
				delete(open, c)
			}
		}
		for n := range 2 { // a new connection is served during a flood
			c := dialFrom(t, s.outside, netip.AddrPortFrom(vip[n], 80))
			open[c] = c.who(t)
		}
	}
	if broken > 0 {
		t.Errorf("the flood broke %d connections", broken)
	}
	if n := s.held(t, 0); n > uint64(len(open)) {
		t.Errorf("%d flows are held, %d connections are open", n, len(open))
	}
}

// held returns the number of held flows of a family, of all services.
func (s *stand) held(t *testing.T, six uint32) uint64 {
	t.Helper()
	return heldIn(t, pins, six)
}

// TestAServiceHoldsItsShareOfTheTable opens more connections to one service than the table has
// places. Another service still gets places, and all connections are served.
func TestAServiceHoldsItsShareOfTheTable(t *testing.T) {
	const flows, most = 64, 48 // three times the places that are free
	s := newStand(t, func(t *testing.T, uplinks ...string) Subject {
		return openSize(t, flows, uplinks...)
	}, "a")
	serve(t, s.boxes["a"], "a")
	s.publish(t, s.endpoint("a", 100))
	open := []*client{}
	for range 2 * flows {
		c := dialFrom(t, s.outside, netip.AddrPortFrom(vip[0], 80))
		c.who(t)
		open = append(open, c)
	}
	if n := s.held(t, 0); n != most {
		t.Errorf("one service holds %d of %d places, want %d", n, flows, most)
	}
	s.publish(t, s.endpoint("a", 50))
	for _, c := range open {
		c.who(t)
	}
	for _, c := range open {
		c.Close()
	}
	eventually(t, "all places are free", func() bool {
		s.sweep(t)
		return s.held(t, 0) == 0
	})
}

// flooded publishes services of the tenant acme with an instance each. It returns their addresses.
func (s *stand) flooded(t *testing.T, services int) (out []netip.AddrPort) {
	t.Helper()
	for n := range services {
		at, name := vip, fmt.Sprintf("flooded%d", n)
		four := vip[0].As4()
		four[3] = byte(100 + n)
		at[0] = netip.AddrFrom4(four)
		serve(t, s.joinAt(t, name, webPorts, at), name)
		check(t, s.Publish(t.Context(), pando.SteeringTable{
			Service: pando.ServiceKey{Tenant: "acme", Name: pando.ServiceName(name)},
			VIP4:    at[0], Ports: webPorts, Endpoints: []pando.Endpoint{s.endpoint(name, 100)}}))
		out = append(out, netip.AddrPortFrom(at[0], 80))
	}
	return out
}

// tenantHeld returns the number of held IPv4 flows of each tenant with one, without their names.
func tenantHeld(t *testing.T) (out []int64) {
	t.Helper()
	m := pinned(t, pins, "tenant_held")
	defer m.Close()
	for n := range uint32(pando.ServicesMax) {
		var flows int64
		check(t, m.Lookup(2*n, &flows))
		if flows != 0 {
			out = append(out, flows)
		}
	}
	return out
}

// TestATenantHoldsItsShareOfTheTable floods four services of a tenant with SYNs and with whole
// connections, more than the table has places. The connections of another tenant live, and its new
// ones still get places. Then this build replaces one without tenants.
func TestATenantHoldsItsShareOfTheTable(t *testing.T) {
	const flows, most, before, after = 64, 48, 4, 6
	s := newStand(t, func(t *testing.T, uplinks ...string) Subject {
		return openSize(t, flows, uplinks...)
	}, "a")
	serve(t, s.boxes["a"], "a")
	s.publish(t, s.endpoint("a", 100))
	var open, floods []*client
	dial := func(to netip.AddrPort) *client {
		c := dialFrom(t, s.outside, to)
		c.who(t)
		return c
	}
	for range before {
		open = append(open, dial(netip.AddrPortFrom(vip[0], 80)))
	}
	random := rand.New(rand.NewPCG(3, 4))
	for _, to := range s.flooded(t, 4) {
		for range flows / 2 {
			floods = append(floods, dial(to))
		}
		s.flood(t, random, to, "S", 1<<13)
	}
	flood := s.held(t, 0) - before
	if flood > most {
		t.Errorf("a tenant holds %d of %d places, want at most %d", flood, flows, most)
	}
	for range after {
		open = append(open, dial(netip.AddrPortFrom(vip[0], 80)))
	}
	if n := s.held(t, 0) - flood; n != before+after {
		t.Errorf("%d of %d connections of the other tenant are held", n, before+after)
	}
	for _, c := range append(open, floods...) {
		c.who(t)
	}
	was := tenantHeld(t)
	dirs, err := filepath.Glob(filepath.Join(pins, "layout-*"))
	check(t, err)
	for _, name := range []string{"tenants", "tenant_held"} {
		check(t, os.Remove(filepath.Join(dirs[0], name)))
	}
	s.Subject = openSize(t, flows, "out")
	slices.Sort(was)
	now := tenantHeld(t)
	slices.Sort(now)
	if len(was) != 2 || !slices.Equal(was, now) {
		t.Errorf("the tenants hold %d flows, and %d after an upgrade", was, now)
	}
	for _, c := range append(open, floods...) {
		c.Close()
	}
	services, err := s.Published(t.Context())
	check(t, err)
	for _, service := range services {
		check(t, s.Withdraw(t.Context(), service))
	}
	eventually(t, "no tenant holds a flow", func() bool {
		s.sweep(t)
		return s.held(t, 0) == 0 && len(tenantHeld(t)) == 0
	})
}

// TestAFloodOfATenantEvictsNoOpeningFlowOfAnother opens flows to a service. Then SYNs for another
// tenant come, many times more than the tables have places. The table changes meanwhile, and each
// client repeats its SYN: the flow is still there, so the SYN reaches the first endpoint.
func TestAFloodOfATenantEvictsNoOpeningFlowOfAnother(t *testing.T) {
	const flows, guarded, most = 64, 512, 384 // three times the places that are free
	s := newStand(t, func(t *testing.T, uplinks ...string) Subject {
		return openSize(t, flows, uplinks...)
	}, "a", "b")
	s.publish(t, s.endpoint("a", 100), s.endpoint("b", 0))
	syn := func(client int) (endpoint string) {
		six := client % 2
		from := netip.AddrPortFrom([2]netip.Addr{netip.MustParseAddr("192.0.2.9"),
			netip.MustParseAddr("2001:db8::9")}[six], uint16(5000+client))
		p := tcp(from, netip.AddrPortFrom(vip[six], 80), "S")
		got, err := s.Try(Outside, s.outside.Link,
			p.Bytes(s.outside.Link.MAC, s.outside.Link.HostMAC), false)
		check(t, err)
		if got.Fate != Sent {
			t.Fatalf("a SYN is %s", got.Fate)
		}
		return fmt.Sprintf("%x", got.Frame[:6])
	}
	const clients = 100
	first := syn(0)
	for n := range clients {
		syn(n)
	}
	random := rand.New(rand.NewPCG(5, 6))
	for _, to := range s.flooded(t, 2) {
		s.flood(t, random, to, "S", 8*guarded)
	}
	if n := entries(t, pins, "guarded"); n > most+clients {
		t.Errorf("%d of %d places for guarded flows are taken", n, guarded)
	}
	s.publish(t, s.endpoint("a", 0), s.endpoint("b", 100))
	for n := range clients {
		if again := syn(n); again != first {
			t.Fatalf("the flow of client %d was evicted: its SYN reaches %s, not %s", n, again, first)
		}
	}
	if other := syn(clients); other == first {
		t.Error("a new flow reaches an endpoint that drains")
	}
	s.sweep(t) // the numbers of guarded flows are those of the table from now on
	m := pinned(t, pins, "tenant_guarded")
	defer m.Close()
	for six, table := range []string{"guarded", "guarded6"} {
		var n int32
		check(t, m.Lookup(uint32(six), &n))
		if now := entries(t, pins, table); int(n) != now {
			t.Errorf("%d flows count as guarded, the table %s has %d", n, table, now)
		}
	}
}

// TestTheHashHasAKey checks that a client cannot know the bucket of a flow. The same flows go to
// other endpoints after the tables were made anew, and to the same after a restart of the driver.
func TestTheHashHasAKey(t *testing.T) {
	s := newStand(t, openTCX, "a", "b")
	where := func() (out string) {
		s.publish(t, s.endpoint("a", 100), s.endpoint("b", 100))
		for n := range 100 {
			for _, flags := range []string{"S", "R"} { // after a reset, a SYN is another flow
				p := tcp(netip.AddrPortFrom(far[0], uint16(2000+n)), netip.AddrPortFrom(vip[0], 80), flags)
				got, err := s.Try(Outside, s.outside.Link,
					p.Bytes(s.outside.Link.MAC, s.outside.Link.HostMAC), false)
				check(t, err)
				out += s.whose(got)
			}
		}
		return out
	}
	renew := func() {
		s.Subject = openTCX(t, "out")
		for _, name := range []string{"a", "b"} {
			check(t, s.Connect(t.Context(), s.boxes[name].Link, webPorts, vip[0], vip[1]))
		}
	}
	first := where()
	renew()
	if again := where(); again != first {
		t.Error("a restart changed the endpoints of flows")
	}
	check(t, s.Purge())
	renew()
	if other := where(); other == first {
		t.Error("the endpoints of flows do not depend on a key")
	}
}

// TestOtherRanges steers to a VIP of another range than the usual one.
func TestOtherRanges(t *testing.T) {
	vips, instances := pando.VIPs4, pando.Instances4
	t.Cleanup(func() { check(t, pando.UseRanges(vips, instances)) })
	check(t, pando.UseRanges(netip.MustParsePrefix("100.64.0.0/16"),
		netip.MustParsePrefix("172.16.0.0/12")))
	s := newStand(t, openTCX, "a")
	to := netip.MustParseAddr("100.64.3.7")
	check(t, s.Publish(t.Context(), pando.SteeringTable{Service: web, VIP4: to, Ports: webPorts,
		Endpoints: []pando.Endpoint{s.endpoint("a", 100)}}))
	for want, dst := range map[string]netip.Addr{"a": to, string(Passed): vip[0]} {
		p := tcp(netip.AddrPortFrom(far[0], 5000), netip.AddrPortFrom(dst, 80), "S")
		got, err := s.Try(Outside, s.outside.Link,
			p.Bytes(s.outside.Link.MAC, s.outside.Link.HostMAC), false)
		if err != nil || s.whose(got) != want {
			t.Errorf("a SYN to %s goes to %s, %v; want %s", dst, s.whose(got), err, want)
		}
	}
	if n := s.sweep(t).Flows["a"]; n != 1 {
		t.Errorf("%d flows of the other range, want 1", n)
	}
}
