package probe

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// A refusal alone is a failure: a program that takes datagrams in silence is well.
func TestUDP(t *testing.T) {
	for _, network := range []string{"udp4", "udp6"} {
		at := "127.0.0.1:0"
		if network == "udp6" {
			at = "[::1]:0"
		}
		c, err := net.ListenPacket(network, at)
		if err != nil {
			t.Skip("needs IPv6 on the loopback device: ", err)
		}
		port := netip.MustParseAddrPort(c.LocalAddr().String()).Port()
		probe := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			return New().Probe(ctx, pando.Probe{Kind: pando.ProbeUDP}, both{}, pando.Port{Target: port})
		}
		if err := probe(); err != nil {
			t.Errorf("%s: no answer: %v", network, err)
		}
		n, from, err := c.ReadFrom(make([]byte, 9))
		if err != nil || n != 0 {
			t.Errorf("%s: the program got %d bytes, %v", network, n, err)
		} else if _, err := c.WriteTo([]byte("at a closed port"), from); err != nil {
			t.Error(err)
		}
		go func() {
			for b := make([]byte, 9); ; {
				_, from, err := c.ReadFrom(b)
				if err != nil {
					return
				}
				_, _ = c.WriteTo([]byte("here"), from) // the probe may be over
			}
		}()
		if err := probe(); err != nil {
			t.Errorf("%s: an answer: %v", network, err)
		}
		c.Close()
		if err := probe(); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("%s: a closed port: %v", network, err)
		}
	}
}

// The end of the agent ends a probe with an error, so that it counts for nothing.
func TestACancelledProbeByUDPFails(t *testing.T) {
	c, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := takes(ctx, c.LocalAddr().String()); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
