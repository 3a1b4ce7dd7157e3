package steering

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/lab"
)

// Straight checks a driver with services that choose at connect: clients are on the host and in an
// instance of another service.
func Straight(t *testing.T, open func(t *testing.T, uplinks ...string) Subject) {
	for name, f := range map[string]func(*testing.T, *straight){
		"a socket goes straight and sees the VIP": socketGoesStraight,
		"an IPv6 socket reaches an IPv4 VIP":      mappedGoesStraight,
		"clients outside use the VIP":             outsideUsesTheVIP,
		"a drain waits for sockets":               drainWaitsForSockets,
		"the policy chooses":                      policyChoosesSockets,
		"fewer live sockets win":                  fewerSocketsWin,
		"UDP goes straight and sees the VIP":      datagramsGoStraight,
		"a datagram socket keeps its instance":    datagramsStay,
		"a connect under way keeps its instance":  oneConnectOneInstance,
		"a service may change its mind":           choiceMayMove,
		"nothing in rotation is refused":          nothingIsRefused,
		"other networks are left alone":           strangersAreLeftAlone,
		"a taker keeps the ways": func(t *testing.T, s *straight) {
			takerKeepsWays(t, s, open)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := &straight{stand: newStand(t, open, "a", "b"), t: t}
			for name, b := range s.boxes {
				serve(t, b, name)
			}
			s.guest = s.visitor()
			f(t, s)
		})
	}
}

// straight is a service that chooses at connect. Guest is an instance of another service.
type straight struct {
	*stand
	t     *testing.T
	guest *lab.Box
	by    pando.BalanceBy
	at    pando.BalanceAt
}

// visitor starts an instance of a service that web is not.
func (s *straight) visitor() *lab.Box {
	s.t.Helper()
	ip4, ip6 := netip.MustParseAddr("10.128.0.99"), netip.MustParseAddr("fd70:616e:646f:1::99")
	b := box(s.t, "pdguest", ip4, ip6, other[0], other[1])
	if err := s.Connect(s.t.Context(), b.Link, nil, other[0], other[1]); err != nil {
		s.t.Fatal(err)
	}
	s.at = pando.AtConnect
	return b
}

// table publishes endpoints by the policy and the moment of s.
func (s *straight) table(endpoints ...pando.Endpoint) {
	s.t.Helper()
	err := s.Publish(s.t.Context(), pando.SteeringTable{
		Service: web, VIP4: vip[0], VIP6: vip[1], Ports: webPorts, Endpoints: endpoints, By: s.by,
		At: s.at,
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// places runs f on the host and in the guest, for each family.
func (s *straight) places(f func(place string, six int, inside func(func() error) error)) {
	for six := range 2 {
		f("the host", six, func(f func() error) error { return f() })
		f("the guest", six, s.guest.Inside)
	}
}

// dialWeb connects to the VIP at a place.
func (s *straight) dialWeb(inside func(func() error) error, six int) *client {
	s.t.Helper()
	var c *client
	err := inside(func() (err error) { c, err = dialTo(netip.AddrPortFrom(vip[six], 80)); return err })
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(c.drop)
	return c
}

// local returns the address at which the instance took a connection.
func (s *straight) local(c *client) netip.AddrPort {
	s.t.Helper()
	text, err := c.ask("local")
	if err != nil {
		s.t.Fatal(err)
	}
	at := netip.MustParseAddrPort(text)
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}

// isStraight reports whether a connection came to an instance's own address.
func (s *straight) isStraight(c *client) bool {
	at, a := s.local(c), s.addr[c.who(s.t)]
	return at.Port() == 8080 && (at.Addr() == a[0] || at.Addr() == a[1])
}

func socketGoesStraight(t *testing.T, s *straight) {
	s.table(s.endpoint("a", 100), s.endpoint("b", 100))
	before := s.traffic(t)
	count := map[string]int{}
	s.places(func(place string, six int, inside func(func() error) error) {
		for range 50 {
			c := s.dialWeb(inside, six)
			count[c.who(t)]++
			if !s.isStraight(c) {
				t.Fatalf("a socket of %s came to the instance at %s", place, s.local(c))
			}
			// Go asks getpeername for it.
			if at := c.RemoteAddr().String(); at != netip.AddrPortFrom(vip[six], 80).String() {
				t.Fatalf("a socket of %s has the peer %s, want the VIP", place, at)
			}
		}
	})
	if count["a"] < 50 || count["b"] < 50 {
		t.Errorf("200 sockets are shared %v", count)
	}
	if n := s.sweep(t).Flows; len(n) != 0 {
		t.Errorf("the connection table has %v, want nothing", n)
	}
	after := s.traffic(t)
	for name, n := range count {
		if got := int(after[name][0] - before[name][0]); got != n {
			t.Errorf("%s counts %d new flows, want %d", name, got, n)
		}
		if after[name][1] != before[name][1] {
			t.Errorf("packets of %s passed the table", name)
		}
	}
}

func mappedGoesStraight(t *testing.T, s *straight) {
	s.table(s.endpoint("a", 100))
	var peer *unix.SockaddrInet6
	err := s.guest.Inside(func() error {
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), "an IPv6 socket")
		defer f.Close()
		if err := unix.Connect(fd, &unix.SockaddrInet6{Port: 80, Addr: vip[0].As16()}); err != nil {
			return err
		}
		at, err := unix.Getpeername(fd)
		if err != nil {
			return err
		}
		peer = at.(*unix.SockaddrInet6)
		c, err := net.FileConn(f)
		if err != nil {
			return err
		}
		defer c.Close()
		if own := s.local(clientOf(c)); own.Addr() != s.addr["a"][0] {
			return fmt.Errorf("it came to %s", own)
		}
		return nil
	})
	if err != nil || peer.Addr != vip[0].As16() || peer.Port != 80 {
		t.Errorf("the peer is %+v, want %s (%v)", peer, vip[0], err)
	}
}

func outsideUsesTheVIP(t *testing.T, s *straight) {
	s.table(s.endpoint("a", 100))
	for six := range 2 {
		c := dialFrom(t, s.outside, netip.AddrPortFrom(vip[six], 80))
		if at := s.local(c); at.Addr() != vip[six] {
			t.Errorf("a client outside came to %s, want the VIP", at)
		}
	}
	if n := s.sweep(t).Flows["a"]; n != 2 {
		t.Errorf("%d flows, want 2", n)
	}
}

func drainWaitsForSockets(t *testing.T, s *straight) {
	s.table(s.endpoint("a", 100), s.endpoint("b", 0))
	held := s.dialWeb(s.guest.Inside, 0)
	if got := held.who(t); got != "a" {
		t.Fatalf("%s answers", got)
	}
	ends, err := s.Ends(t.Context(), web, "a")
	if err != nil {
		t.Fatal(err)
	}
	s.table(s.endpoint("a", 0), s.endpoint("b", 100))
	if n := s.sweep(t).Flows["a"]; n != 1 {
		t.Errorf("the instance that drains has %d flows, want 1", n)
	}
	s.places(func(place string, six int, inside func(func() error) error) {
		for range 20 {
			if got := s.dialWeb(inside, six).who(t); got != "b" {
				t.Fatalf("a new socket of %s went to %s, which drains", place, got)
			}
		}
	})
	if got := held.who(t); got != "a" {
		t.Errorf("the held socket is answered by %s", got)
	}
	held.Close()
	eventually(t, "the drain is over", func() bool { return s.sweep(t).Flows["a"] == 0 })
	if now, err := s.Ends(t.Context(), web, "a"); err != nil || now <= ends {
		t.Errorf("the end of the socket was not counted: %d, then %d (%v)", ends, now, err)
	}
}

func policyChoosesSockets(t *testing.T, s *straight) {
	host := func(f func() error) error { return f() }
	s.by = pando.ByRoundRobin
	s.table(s.endpoint("a", 100), s.endpoint("b", 100))
	var got string
	for n := range 8 {
		got += s.dialWeb(host, n%2).who(t)
	}
	if got != "abababab" && got != "babababa" {
		t.Errorf("by turns: %s", got)
	}
	s.by = pando.ByScore
	s.table(s.endpoint("a", 100), s.endpoint("b", 100))
	r := pando.Ranking{Scores: []pando.Score{{Instance: "a", Value: 1, Excluded: true},
		{Instance: "b", Value: .1}}}
	if err := s.Score(t.Context(), web, r); err != nil {
		t.Fatal(err)
	}
	got = ""
	for range missesOf {
		got += s.dialWeb(s.guest.Inside, 0).who(t)
	}
	if strings.Count(got, "a") > missesMax {
		t.Errorf("by score, with a excluded: %s", got)
	}
}

func fewerSocketsWin(t *testing.T, s *straight) {
	host := func(f func() error) error { return f() }
	s.by = pando.ByLeastFlows
	s.table(s.endpoint("a", 100), s.endpoint("b", 100))
	held := map[string][]*client{}
	dial := func(n int) (who string) {
		for at := range n {
			c := s.dialWeb(host, at%2)
			got := c.who(t)
			held[got] = append(held[got], c)
			who += got
		}
		return who
	}
	live := map[string]int{"a": 0, "b": 0}
	if who := dial(2 * missesOf); misses(live, who) > 2*missesMax {
		t.Errorf("without a socket at first, they go to %s", who)
	}
	live["b"] = len(held["b"])
	for _, c := range held["a"] {
		c.Close()
	}
	// The sweep corrects the numbers, and must leave the sockets in them.
	eventually(t, "no socket of a is left", func() bool { return s.sweep(t).Flows["a"] == 0 })
	if who := dial(missesOf); misses(live, who) > missesMax {
		t.Errorf("b has %d sockets, a has none, and they go to %s", live["b"], who)
	}
}

// A program that does not wait asks connect again until it is done.
func oneConnectOneInstance(t *testing.T, s *straight) {
	s.table(s.endpoint("a", 100), s.endpoint("b", 100))
	flows := func() uint64 { n := s.traffic(t); return n["a"][0] + n["b"][0] }
	for range 20 {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		to := &unix.SockaddrInet4{Port: 80, Addr: vip[0].As4()}
		first := unix.Connect(fd, to)
		after := flows()
		for err = first; err == unix.EINPROGRESS || err == unix.EALREADY; {
			err = unix.Connect(fd, to)
		}
		if err != nil && err != unix.EISCONN {
			t.Errorf("connect: %v, then %v", first, err)
		}
		if n := flows(); n != after {
			t.Errorf("one socket counts as %d flows", 1+n-after)
		}
		if err := unix.Close(fd); err != nil {
			t.Fatal(err)
		}
	}
	if n := flows(); n != 20 {
		t.Errorf("20 sockets are %d flows", n)
	}
}

func choiceMayMove(t *testing.T, s *straight) {
	s.table(s.endpoint("a", 100))
	held := s.dialWeb(s.guest.Inside, 0)
	if !s.isStraight(held) {
		t.Fatal("the first socket is not straight")
	}
	s.at = pando.AtPacket
	s.table(s.endpoint("a", 100))
	c := s.dialWeb(s.guest.Inside, 0)
	if at := s.local(c); at.Addr() != vip[0] {
		t.Errorf("after the change a socket came to %s, want the VIP", at)
	}
	c.Close()
	s.table(s.endpoint("a", 0), s.endpoint("b", 100))
	eventually(t, "the socket alone is left", func() bool { return s.sweep(t).Flows["a"] == 1 })
	held.Close()
	eventually(t, "the drain is over", func() bool { return s.sweep(t).Flows["a"] == 0 })
}

func nothingIsRefused(t *testing.T, s *straight) {
	s.table(s.endpoint("a", 100))
	s.table(s.endpoint("a", 0))
	s.places(func(place string, six int, inside func(func() error) error) {
		err := inside(func() error {
			_, err := dialTo(netip.AddrPortFrom(vip[six], 80))
			return err
		})
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: %v, want a refusal", place, err)
		}
	})
	s.table()
	if err := s.Withdraw(t.Context(), web); err != nil {
		t.Fatal(err)
	}
}

// A network namespace that is no instance may have routes of its own to such addresses.
func strangersAreLeftAlone(t *testing.T, s *straight) {
	s.table(s.endpoint("a", 100))
	if err := s.Disconnect(t.Context(), s.guest.Link); err != nil {
		t.Fatal(err)
	}
	err := s.guest.Inside(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.Connect(fd, &unix.SockaddrInet4{Port: 53, Addr: vip[0].As4()}); err != nil {
			return err
		}
		at, err := unix.Getpeername(fd)
		if err != nil {
			return err
		}
		if peer := at.(*unix.SockaddrInet4); peer.Addr != vip[0].As4() || peer.Port != 53 {
			return fmt.Errorf("its peer is %v", peer)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if n := s.traffic(t)["a"][0]; n != 0 {
		t.Errorf("%d flows were counted", n)
	}
}

// takerKeepsWays lets another process take over. Sockets stay, and a drain still counts them.
func takerKeepsWays(t *testing.T, s *straight,
	open func(t *testing.T, uplinks ...string) Subject) {
	s.table(s.endpoint("a", 100))
	held := s.dialWeb(s.guest.Inside, 0)
	s.Subject = open(t, "out")
	if c := s.dialWeb(s.guest.Inside, 1); !s.isStraight(c) {
		t.Error("after the takeover a socket uses the VIP")
	}
	for _, name := range slices.Sorted(maps.Keys(s.boxes)) {
		l := s.boxes[name].Link
		if err := s.Connect(t.Context(), l, webPorts, vip[0], vip[1]); err != nil {
			t.Fatal(err)
		}
	}
	s.table(s.endpoint("a", 0), s.endpoint("b", 100))
	if n := s.sweep(t).Flows["a"]; n != 2 {
		t.Errorf("after the takeover the instance that drains has %d flows, want 2", n)
	}
	held.Close()
	eventually(t, "one socket is left", func() bool { return s.sweep(t).Flows["a"] == 1 })
}

// straightToAnotherHost connects from the first host to instances of two others. The host of an
// instance counts the socket for its drain.
func straightToAnotherHost(t *testing.T, e *estate) {
	e.at = pando.AtConnect
	e.join(1, "b", 100)
	e.join(2, "c", 100)
	e.publish()
	held := map[string]*client{}
	for six := range 2 {
		for range 10 {
			c := e.dial("h1", six)
			at, err := c.ask("local")
			check(t, err)
			got := c.who(t)
			link := e.place[got].boxes[got].Link
			local := netip.MustParseAddrPort(at).Addr().Unmap()
			if local != link.IP4 && local != link.IP6 {
				t.Errorf("a socket came to %s at %s", got, local)
			}
			held[got] = c
		}
	}
	if len(held) != 2 {
		t.Fatalf("20 sockets went to %d of 2 hosts", len(held))
	}
	e.weights["b"] = 0
	e.publish()
	flows := func() (n int) {
		check(t, e.hosts[1].inside(func() error {
			r, err := e.hosts[1].Sweep(t.Context())
			n = r.Flows["b"]
			return err
		}))
		return n
	}
	if n := flows(); n < 1 {
		t.Error("the host of the instance counts no socket of the other host")
	}
	stays := held["b"]
	if got := stays.who(t); got != "b" {
		t.Errorf("%s answers for b", got)
	}
	for six := range 2 {
		for range 10 {
			next := e.dial("h1", six)
			if got := next.who(t); got != "c" {
				t.Errorf("a new socket went to %s, which drains", got)
			}
		}
	}
}
