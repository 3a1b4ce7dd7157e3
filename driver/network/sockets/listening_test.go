package sockets

import (
	"context"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// A port is heard by the families of its listeners, and a service by those of all its ports.
func TestPortsAreHeardByTheFamiliesOfTheirListeners(t *testing.T) {
	only6 := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1)
		})
	}}
	port := map[string]pando.Port{}
	for name, c := range map[string]struct{ network, at string }{
		"tcp 4": {"tcp4", "0.0.0.0:0"}, "tcp both": {"tcp", "[::]:0"}, "tcp 6": {"tcp6", "[::]:0"},
		"tcp loopback": {"tcp4", "127.0.0.1:0"}, "udp 4": {"udp4", "0.0.0.0:0"},
		"udp both": {"udp", "[::]:0"}, "udp 6": {"udp6", "[::]:0"},
	} {
		config := net.ListenConfig{}
		if c.network == "tcp6" || c.network == "udp6" {
			config = only6
		}
		var address net.Addr
		if c.network[:3] == "tcp" {
			l, err := config.Listen(context.Background(), c.network, c.at)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			address = l.Addr()
		} else {
			l, err := config.ListenPacket(context.Background(), c.network, c.at)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			address = l.LocalAddr()
		}
		port[name] = pando.Port{Published: 1, Protocol: pando.Protocol(c.network[:3]),
			Target: netip.MustParseAddrPort(address.String()).Port()}
	}
	for _, c := range []struct {
		ports []string
		want  pando.Hearing
	}{
		{[]string{"tcp 4"}, "4"}, {[]string{"tcp both"}, "46"}, {[]string{"tcp 6"}, "6"},
		{[]string{"udp 4"}, "4"}, {[]string{"udp both"}, "46"}, {[]string{"udp 6"}, "6"},
		{[]string{"tcp loopback"}, ""}, {nil, ""},
		{[]string{"tcp both", "udp 4"}, "4"}, {[]string{"tcp both", "tcp loopback"}, "46"},
		{[]string{"tcp 4", "tcp 6"}, ""},
	} {
		var ports []pando.Port
		for _, name := range c.ports {
			ports = append(ports, port[name])
		}
		if got, err := Hearing(ports); got != c.want || err != nil {
			t.Errorf("%v: %q, %v, want %q", c.ports, got, err, c.want)
		}
	}
}
