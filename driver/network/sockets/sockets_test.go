package sockets

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
)

// A list has each open connection of the namespace by its two ends, of both families, and no
// listener.
func TestConnectionsOfBothFamiliesAreListed(t *testing.T) {
	for _, own := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", own)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		client, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		server, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		all, err := TCP()
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []net.Conn{client, server} {
			want := Socket{Established, at(c.LocalAddr()), at(c.RemoteAddr())}
			if !slices.Contains(all, want) || !want.Accepted() {
				t.Errorf("the connection %v is missing in %v", want, all)
			}
		}
		for _, s := range all {
			if s.Remote.Port() == 0 {
				t.Errorf("a listener at %s is in the list", s.Local)
			}
		}
		// The client ends first: the connection is half open, and still listed.
		if err := client.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		all, err = TCP()
		half := slices.ContainsFunc(all, func(s Socket) bool {
			return s.Local == at(client.LocalAddr()) && s.State != Established
		})
		if err != nil || !half {
			t.Errorf("a connection that is half open is missing in %v (%v)", all, err)
		}
	}
}

func at(a net.Addr) netip.AddrPort {
	p := netip.MustParseAddrPort(a.String())
	return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
}

func TestUDPSocketsWithAPeerAreListed(t *testing.T) {
	for _, own := range []string{"127.0.0.1:0", "[::1]:0"} {
		waiting, err := net.ListenPacket("udp", own)
		if err != nil {
			t.Fatal(err)
		}
		defer waiting.Close()
		peer, err := net.Dial("udp", waiting.LocalAddr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer peer.Close()
		all, err := UDP()
		if err != nil {
			t.Fatal(err)
		}
		ends := func(local net.Addr) bool {
			return slices.ContainsFunc(all, func(s Socket) bool { return s.Local == at(local) })
		}
		if !ends(peer.LocalAddr()) || ends(waiting.LocalAddr()) {
			t.Errorf("the list %v, want %s in it, and not %s", all, peer.LocalAddr(),
				waiting.LocalAddr())
		}
	}
}

// An IPv4 connection of an IPv6 socket has IPv4 addresses.
func TestAMappedAddressIsIPv4(t *testing.T) {
	m := make([]byte, messageLen)
	m[0], m[1], m[4], m[7] = 10, byte(CloseWait), 1, 80
	for _, at := range []int{8, 24} {
		copy(m[at:], netip.MustParseAddr("::ffff:192.0.2.7").AsSlice())
	}
	got, err := parse(m)
	want := Socket{CloseWait, netip.MustParseAddrPort("192.0.2.7:256"),
		netip.MustParseAddrPort("192.0.2.7:80")}
	if err != nil || got != want {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
}

func TestAShortMessageIsAnError(t *testing.T) {
	if _, err := parse(make([]byte, messageLen-1)); !errors.Is(err, errShort) {
		t.Errorf("%v, want %v", err, errShort)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(make([]byte, messageLen))
	f.Fuzz(func(t *testing.T, m []byte) {
		s, err := parse(m)
		if err == nil && (s.Local.Addr().Is4In6() || s.Remote.Addr().Is4In6()) {
			t.Errorf("an IPv4 address in its IPv6 form: %v", s)
		}
	})
}
