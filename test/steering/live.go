package steering

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/network/sockets"
	"pando.run/pando/lab"
)

// Live checks a driver with real sockets: clients outside and on the host, servers in instances.
func Live(t *testing.T, open func(t *testing.T, uplinks ...string) Subject) {
	for name, f := range map[string]func(*testing.T, *stand){
		"flows are shared and stay":                       flowsAreSharedAndStay,
		"what is announced comes, goes and comes again":   announcedComesAgain,
		"the sweep knows what is over":                    sweepKnowsWhatIsOver,
		"a refusal comes at once":                         nobodyWaits,
		"UDP is answered by the VIP":                      udpIsAnsweredByTheVIP,
		"an instance is reached directly, and not forged": directAndNotForged,
		"a smaller MTU on the way is reported":            smallerMTU,
		"ping":                                            pings,
		"a handshake is no flow for long":                 handshakes,
		"a direct connection is no flow":                  directIsNoFlow,
		"an end is counted":                               endsAreCounted,

		"a host that takes over": func(t *testing.T, s *stand) { takesOver(t, s, open) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStand(t, open, "a", "b")
			if why := lack(s.Subject, name); why != "" {
				t.Logf("not held by this driver: %s", why)
				return
			}
			for name, b := range s.boxes {
				serve(t, b, name)
			}
			f(t, s)
		})
	}
}

const wait = 10 * time.Second // for events that have to happen at once, on a busy machine

// serve answers every line with a name, and every datagram with the name and as many bytes as it
// had. It answers a number with as many bytes, "local" with its own end, and "reset" with an RST.
func serve(t *testing.T, b *lab.Box, name string) {
	t.Helper()
	serveAt(t, b, name, 8080, 443)
}

// serveAt answers TCP at these ports, and UDP.
func serveAt(t *testing.T, b *lab.Box, name string, ports ...uint16) {
	t.Helper()
	err := b.Inside(func() error {
		for _, port := range ports {
			l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
			if err != nil {
				return err
			}
			t.Cleanup(func() { l.Close() })
			go accept(l, name)
		}
		u, err := net.ListenPacket("udp", ":5353")
		if err != nil {
			return err
		}
		t.Cleanup(func() { u.Close() })
		go func() {
			p := make([]byte, 1<<16)
			for {
				n, from, err := u.ReadFrom(p)
				if err != nil {
					return
				}
				_, _ = u.WriteTo(append([]byte(name), p[1:n]...), from)
			}
		}()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func accept(l net.Listener, name string) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			in := bufio.NewScanner(c)
			for in.Scan() {
				if in.Text() == "reset" {
					_ = c.(*net.TCPConn).SetLinger(0)
					return
				}
				answer := name
				if in.Text() == "local" {
					answer = c.LocalAddr().String()
				}
				if n, err := strconv.Atoi(in.Text()); err == nil {
					answer = strings.Repeat("x", n)
				}
				if _, err := fmt.Fprintln(c, answer); err != nil {
					return
				}
			}
		}()
	}
}

// client is one connection.
type client struct {
	net.Conn
	in *bufio.Reader
}

func clientOf(c net.Conn) *client { return &client{c, bufio.NewReader(c)} }

func dialTo(to netip.AddrPort) (*client, error) {
	c, err := net.DialTimeout("tcp", to.String(), wait)
	if err != nil {
		return nil, err
	}
	return clientOf(c), nil
}

func dial(t *testing.T, to netip.AddrPort) *client {
	t.Helper()
	c, err := dialTo(to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.drop)
	return c
}

// dialFrom connects from within a box.
func dialFrom(t *testing.T, b *lab.Box, to netip.AddrPort) *client {
	t.Helper()
	var c *client
	if err := b.Inside(func() (err error) { c, err = dialTo(to); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.drop)
	return c
}

// drop ends a connection without the answer of its instance, which may be gone. The socket of a
// usual end would send its FIN again and again, into the next test.
func (c *client) drop() {
	_ = c.Conn.(*net.TCPConn).SetLinger(0)
	c.Close()
}

// awaitClientsEnd waits until no connection of this namespace can send a packet. A stand keeps its
// instances until then, because a client whose instance is gone repeats its last packet for
// minutes. The next test would count that packet.
func awaitClientsEnd(t *testing.T) {
	t.Helper()
	var left []sockets.Socket
	defer func() {
		if len(left) > 0 {
			t.Logf("the clients %v have not ended", left)
		}
	}()
	eventually(t, "the clients of the test have ended", func() bool {
		all, err := sockets.TCP()
		check(t, err)
		left = slices.DeleteFunc(all, func(s sockets.Socket) bool { return s.State == sockets.FinWait2 })
		return len(left) == 0
	})
}

// ask returns the name of the instance at the other end.
func (c *client) ask(line string) (string, error) {
	if err := c.SetDeadline(time.Now().Add(wait)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintln(c, line); err != nil {
		return "", err
	}
	name, err := c.in.ReadString('\n')
	if err != nil {
		return "", err
	}
	return name[:len(name)-1], nil
}

func (c *client) who(t *testing.T) string {
	t.Helper()
	name, err := c.ask("who")
	if err != nil {
		t.Fatalf("the connection from %s is broken: %v", c.LocalAddr(), err)
	}
	return name
}

func flowsAreSharedAndStay(t *testing.T, s *stand) {
	s.publish(t, s.endpoint("a", 100), s.endpoint("b", 100))
	first, count := map[*client]string{}, map[string]int{}
	for n := range 200 {
		var c *client
		if to := netip.AddrPortFrom(vip[n%2], 80); n%4 < 2 {
			c = dial(t, to)
		} else {
			c = dialFrom(t, s.outside, to)
		}
		first[c] = c.who(t)
		count[first[c]]++
	}
	if count["a"] < 60 || count["b"] < 60 {
		t.Errorf("200 connections are shared %v", count)
	}
	same := func(when string) {
		t.Helper()
		for c, was := range first {
			if who := c.who(t); who != was {
				t.Fatalf("%s: a connection to %s is answered by %s", when, was, who)
			}
		}
	}
	s.publish(t, s.endpoint("a", 100), s.endpoint("b", 0))
	same("b drains")
	for n := range 50 {
		if who := dial(t, netip.AddrPortFrom(vip[n%2], 80)).who(t); who != "a" {
			t.Fatalf("a new connection went to %s, which drains", who)
		}
	}
	s.publish(t, s.endpoint("a", 10), s.endpoint("b", 300))
	same("other weights")
}

func (s *stand) sweep(t *testing.T) pando.SweepReport {
	t.Helper()
	r, err := s.Sweep(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	const patience = 10 * wait // the machine may be busy
	for deadline := time.Now().Add(patience); !holds(); {
		if time.Now().After(deadline) {
			t.Fatalf("after %s still not: %s", patience, what)
		}
	}
}

func sweepKnowsWhatIsOver(t *testing.T, s *stand) {
	s.publish(t, s.endpoint("a", 100), s.endpoint("b", 0))
	for six := range 2 {
		to := netip.AddrPortFrom(vip[six], 80)
		open, done := dial(t, to), dialFrom(t, s.outside, to)
		open.who(t)
		done.who(t)
		done.Close()
		eventually(t, "one flow of a is left",
			func() bool { r := s.sweep(t); return r.Flows["a"] == 1 && r.Flows["b"] == 0 })
		open.who(t)
		open.Close()
		eventually(t, "none is left", func() bool { return s.sweep(t).Flows["a"] == 0 })
	}
	if n := s.traffic(t)["a"]; n[0] != 4 || n[1] == 0 {
		t.Errorf("flows, packets and bytes of a are %v, want 4 flows", n)
	}
	if e := s.sweep(t).Evicted; e != 0 {
		t.Errorf("%d flows were evicted from a table that is nearly empty", e)
	}
}

// nobodyWaits checks that a request to a closed port or an unused address is refused at once, from
// every place.
func nobodyWaits(t *testing.T, s *stand) {
	s.publish(t, s.endpoint("a", 100))
	refused := func(network string, to netip.AddrPort) error {
		begin := time.Now()
		c, err := net.DialTimeout(network, to.String(), wait)
		if err == nil && network == "udp" {
			_ = c.SetDeadline(time.Now().Add(wait))
			_, _ = c.Write([]byte("who"))
			_, err = c.Read(make([]byte, 1))
		}
		if c != nil {
			c.Close()
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return fmt.Errorf("%s %s: %v after %s, want a refusal", network, to, err, time.Since(begin))
		}
		return nil
	}
	for six := range 2 {
		for _, network := range []string{"tcp", "udp"} {
			for _, to := range []netip.AddrPort{
				netip.AddrPortFrom(vip[six], 81), netip.AddrPortFrom(none[six], 80),
			} {
				ask := func() error { return refused(network, to) }
				for where, from := range map[string]func(func() error) error{
					"the host": func(f func() error) error { return f() }, "outside": s.outside.Inside,
					"an instance": s.boxes["b"].Inside,
				} {
					if where == "an instance" && to.Addr() == vip[six] {
						continue // it has this VIP itself
					}
					if err := from(ask); err != nil {
						t.Errorf("from %s: %v", where, err)
					}
				}
			}
		}
	}
}

func udpIsAnsweredByTheVIP(t *testing.T, s *stand) {
	s.publish(t, s.endpoint("a", 100), s.endpoint("b", 0))
	ask := func(six, size int) func() error {
		return func() error {
			// The socket is connected, so it drops an answer from another address.
			c, err := net.Dial("udp", netip.AddrPortFrom(vip[six], 53).String())
			if err != nil {
				return err
			}
			defer c.Close()
			if err := c.SetDeadline(time.Now().Add(wait)); err != nil {
				return err
			}
			if _, err := c.Write(make([]byte, size)); err != nil {
				return err
			}
			p := make([]byte, 1<<16)
			n, err := c.Read(p)
			if err != nil || n != size || p[0] != 'a' {
				return fmt.Errorf("%d bytes to %s: got %d beginning with %q, %v",
					size, vip[six], n, p[:min(n, 1)], err)
			}
			return nil
		}
	}
	for six := range 2 {
		for _, size := range []int{1, 1000, 9000, 60000} { // the large ones in pieces
			for where, from := range map[string]func(func() error) error{
				"the host": func(f func() error) error { return f() }, "outside": s.outside.Inside,
			} {
				if err := from(ask(six, size)); err != nil {
					t.Errorf("from %s: %v", where, err)
				}
			}
		}
	}
}

func directAndNotForged(t *testing.T, s *stand) {
	s.publish(t, s.endpoint("a", 100), s.endpoint("b", 100))
	for six := range 2 {
		if who := dial(t, netip.AddrPortFrom(s.addr["b"][six], 8080)).who(t); who != "b" {
			t.Errorf("the address of b is answered by %s", who)
		}
		before := s.drops(t).Packets[pando.DroppedSpoofed]
		err := s.boxes["a"].Inside(func() error { // from the VIP, but not from a port of the service
			c, err := net.DialUDP("udp", &net.UDPAddr{IP: vip[six].AsSlice(), Port: 7777},
				&net.UDPAddr{IP: far[six].AsSlice(), Port: 9999})
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Write([]byte("forged"))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if n := s.drops(t).Packets[pando.DroppedSpoofed] - before; n != 1 {
			t.Errorf("%d packets were dropped as spoofed, want 1", n)
		}
	}
}

// smallerMTU checks that a client behind a link with a small MTU gets a large answer. The instance
// must receive the ICMP error and send smaller packets.
func smallerMTU(t *testing.T, s *stand) {
	s.publish(t, s.endpoint("a", 100))
	for six, mtu := range []int{1300, 1290} {
		c := dialFrom(t, s.outside, netip.AddrPortFrom(vip[six], 80))
		c.who(t)
		if err := s.outside.SetMTU(mtu); err != nil { // after the handshake, which has agreed on more
			t.Fatal(err)
		}
		answer, err := c.ask(fmt.Sprintf("%d", 1<<20))
		if err != nil || len(answer) != 1<<20 {
			t.Errorf("from %s: %d bytes of %d, %v", vip[six], len(answer), 1<<20, err)
		}
		if err := s.outside.SetMTU(1500); err != nil {
			t.Fatal(err)
		}
	}
}

// pings checks that the VIP answers pings even without an instance in rotation.
func pings(t *testing.T, s *stand) {
	s.publish(t)
	for six, network := range []string{"ip4:icmp", "ip6:ipv6-icmp"} {
		ping := func() error {
			c, err := net.Dial(network, vip[six].String())
			if err != nil {
				return err
			}
			defer c.Close()
			p := icmp(far[six], vip[six], []uint8{8, 128}[six], 0)
			p.Payload = []byte("are you there?")
			if err := c.SetDeadline(time.Now().Add(wait)); err != nil {
				return err
			}
			if _, err := c.Write(p.transport()); err != nil {
				return err
			}
			answer := make([]byte, 100)
			for {
				n, _, err := c.(*net.IPConn).ReadFrom(answer) // without the network header
				if err != nil || n > 0 && answer[0] == []byte{0, 129}[six] {
					return err
				}
			}
		}
		if err := ping(); err != nil {
			t.Errorf("from the host to %s: %v", vip[six], err)
		}
		if err := s.outside.Inside(ping); err != nil {
			t.Errorf("from outside to %s: %v", vip[six], err)
		}
	}
}
