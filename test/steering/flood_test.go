package steering

import (
	"errors"
	"math/rand/v2"
	"net/netip"
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
