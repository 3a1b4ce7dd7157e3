package steering

import (
	"net"
	"net/netip"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/lab"
)

// These tests check that the connection table agrees with the instances' sockets.

// emit puts frames onto the link of a box from within, as a stack of its own would.
func emit(t *testing.T, b *lab.Box, frames ...[]byte) {
	t.Helper()
	err := b.Inside(func() error {
		eth, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for _, f := range frames {
			if err := unix.Sendto(fd, f, 0, &unix.SockaddrLinklayer{Ifindex: eth.Index}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// handshakes checks that a flood of SYNs from unused addresses counts as flows for some seconds
// only. The table then holds no trace of it.
func handshakes(t *testing.T, s *stand) {
	s.publish(t, s.endpoint("a", 100))
	kept := dial(t, netip.AddrPortFrom(vip[0], 80))
	kept.who(t)
	var flood [][]byte
	for six := range 2 {
		nowhere := []string{"198.51.100.7", "2001:db8:7::7"}[six]
		for n := range 50 {
			p := tcp(netip.AddrPortFrom(netip.MustParseAddr(nowhere), uint16(3000+n)),
				netip.AddrPortFrom(vip[six], 80), "S")
			flood = append(flood, p.Bytes(s.outside.Link.MAC, s.outside.Link.HostMAC))
		}
	}
	eventually(t, "100 handshakes count beside one connection", func() bool {
		// The flood repeats, because on a busy machine the first SYN may expire before the last is seen.
		emit(t, s.outside, flood...)
		return s.sweep(t).Flows["a"] == 101
	})
	eventually(t, "only the connection counts", func() bool { return s.sweep(t).Flows["a"] == 1 })
	kept.who(t)
}

// directIsNoFlow checks that a connection to an instance's own address does not hold up its drain.
// The connection differs from a steered one only in the address.
func directIsNoFlow(t *testing.T, s *stand) {
	s.publish(t, s.endpoint("a", 100))
	for six := range 2 {
		from := func(to netip.AddrPort, port int) *client {
			d := net.Dialer{Timeout: wait,
				LocalAddr: &net.TCPAddr{Port: port}, Control: func(_, _ string, c syscall.RawConn) (err error) {
					cerr := c.Control(func(fd uintptr) {
						err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
					})
					if cerr != nil {
						return cerr
					}
					return err
				}}
			var c net.Conn
			err := s.outside.Inside(func() (err error) { c, err = d.Dial("tcp", to.String()); return err })
			if err != nil {
				t.Fatal(err)
			}
			own := clientOf(c)
			t.Cleanup(own.drop)
			return own
		}
		steered, direct := from(netip.AddrPortFrom(vip[six], 443),
			7001), from(netip.AddrPortFrom(s.addr["a"][six], 443), 7001)
		steered.who(t)
		direct.who(t)
		if n := s.sweep(t).Flows["a"]; n != 1 {
			t.Errorf("%d flows, want the one to the VIP", n)
		}
		steered.Close()
		eventually(t, "no flow is left", func() bool { return s.sweep(t).Flows["a"] == 0 })
		direct.who(t)
	}
}

// takesOver checks that the connections of the instances survive when a driver loses all of its
// records, with a bucket or without.
func takesOver(t *testing.T, s *stand, open func(t *testing.T, uplinks ...string) Subject) {
	s.publish(t, s.endpoint("a", 100), s.endpoint("b", 100))
	var all []*client
	was := map[*client]string{}
	for n := range 40 {
		c := dialFrom(t, s.outside, netip.AddrPortFrom(vip[n%2], 80))
		was[c] = c.who(t)
		all = append(all, c)
	}
	if err := s.Purge(); err != nil {
		t.Fatal(err)
	}
	s.Subject = open(t, "out")
	for _, name := range []string{"a", "b"} {
		if err := s.Connect(t.Context(), s.boxes[name].Link, webPorts, vip[0], vip[1]); err != nil {
			t.Fatal(err)
		}
	}
	s.publish(t, s.endpoint("a", 100), s.endpoint("b", 0))
	for _, c := range all {
		if who := c.who(t); who != was[c] {
			t.Fatalf("a connection to %s is answered by %s", was[c], who)
		}
	}
	if r := s.sweep(t); r.Flows["a"]+r.Flows["b"] != len(all) {
		t.Errorf("flows are %v, want %d", r.Flows, len(all))
	}
}

// Full checks a driver with a full table of opening flows. The driver must evict and count the
// longest unused one, and keep an established flow. open makes a table for so many opening flows.
func Full(t *testing.T, flows int, open func(t *testing.T, uplinks ...string) Subject) {
	s := newStand(t, open, "a", "b")
	for name, b := range s.boxes {
		serve(t, b, name)
	}
	s.publish(t, s.endpoint("a", 100), s.endpoint("b", 100))
	first := dialFrom(t, s.outside, netip.AddrPortFrom(vip[0], 80))
	was := first.who(t)
	first.acknowledge(t)
	const more = 4
	for n := range more * flows {
		p := tcp(netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, byte(n >> 8), byte(n)}), 1),
			netip.AddrPortFrom(vip[0], 80), "S")
		got, err := s.Try(Outside, s.outside.Link, p.Bytes(s.outside.Link.MAC, s.outside.Link.HostMAC),
			false)
		if err != nil || got.Fate != Sent {
			t.Fatalf("flow %d of %d: %s, %v", n, more*flows, got.Fate, err)
		}
	}
	s.publish(t, s.endpoint("a", 50), s.endpoint("b", 200)) // the tables cannot restore the flow
	s.publish(t, s.endpoint("a", 200), s.endpoint("b", 50))
	r := s.sweep(t)
	present := r.Flows["a"] + r.Flows["b"]
	if present > flows+1 || r.Evicted+present+r.Closed != more*flows+1 {
		t.Errorf("%d flows are there, %d were evicted and %d closed of %d",
			present, r.Evicted, r.Closed, more*flows+1)
	}
	if who := first.who(t); who != was {
		t.Errorf("a connection to %s is answered by %s", was, who)
	}
	if d := s.drops(t); d.Packets[pando.DroppedNoFlow] != 0 {
		t.Errorf("drops: %v", d)
	}
}

// acknowledge makes the kernel send its acknowledgement at once instead of up to 40 ms later. A
// packet that arrives after its flow was evicted makes the flow anew, and counts.
func (c *client) acknowledge(t *testing.T) {
	t.Helper()
	raw, err := c.Conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var refused error
	err = raw.Control(func(fd uintptr) {
		refused = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1)
	})
	if err != nil || refused != nil {
		t.Fatalf("acknowledge at once: %v, %v", err, refused)
	}
}

// endsAreCounted checks that the end of a connection raises its endpoint's count of ends, whichever
// side begins it, and that a request does not.
func endsAreCounted(t *testing.T, s *stand) {
	s.publish(t, s.endpoint("a", 100))
	ends := func() uint64 {
		n, err := s.Ends(t.Context(), web, "a")
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for six := range 2 {
		c := dialFrom(t, s.outside, netip.AddrPortFrom(vip[six], 80))
		c.who(t)
		before := ends()
		for range 10 {
			c.who(t)
		}
		if n := ends(); n != before {
			t.Errorf("requests raised the count of ends from %d to %d", before, n)
		}
		c.Close()
		eventually(t, "both sides have ended", func() bool { return ends() >= before+2 })
	}
	if n, err := s.Ends(t.Context(), quiet, "none"); n != 0 || err != nil {
		t.Errorf("an unknown endpoint has %d ends, %v", n, err)
	}
}
