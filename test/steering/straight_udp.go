package steering

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"
)

func datagramsGoStraight(t *testing.T, s *straight) {
	s.table(s.endpoint("a", 100))
	s.places(func(place string, six int, inside func(func() error) error) {
		to := netip.AddrPortFrom(vip[six], 53)
		for _, connected := range []bool{true, false} {
			from, name, err := askOnce(inside, to, connected)
			if err != nil || name != 'a' || from != to {
				t.Errorf("%s, connected %v: %q answers from %s, %v", place, connected, name, from, err)
			}
		}
	})
	for name, n := range s.traffic(t) {
		if n[1] != 0 {
			t.Errorf("%d datagrams of %s passed the table", n[1], name)
		}
	}
}

// askOnce sends a datagram and returns the source and the first byte of the answer. It sends again
// after a second: a busy kernel may lose a datagram.
func askOnce(inside func(func() error) error, to netip.AddrPort, connected bool) (
	from netip.AddrPort, name byte, err error,
) {
	err = inside(func() error {
		var c *net.UDPConn
		network := "udp4"
		if to.Addr().Is6() {
			network = "udp6"
		}
		if connected {
			c, err = net.DialUDP(network, nil, net.UDPAddrFromAddrPort(to))
		} else {
			c, err = net.ListenUDP(network, nil)
		}
		if err != nil {
			return err
		}
		defer c.Close()
		p := make([]byte, 9)
		for end := time.Now().Add(wait); ; {
			if connected {
				_, err = c.Write([]byte("?"))
			} else {
				_, err = c.WriteToUDPAddrPort([]byte("?"), to)
			}
			if err != nil {
				return err
			}
			if err := c.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
				return err
			}
			_, from, err = c.ReadFromUDPAddrPort(p)
			name = p[0]
			if !errors.Is(err, os.ErrDeadlineExceeded) || time.Now().After(end) {
				return err
			}
		}
	})
	return netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), name, err
}

func datagramsStay(t *testing.T, s *straight) {
	s.table(s.endpoint("a", 100), s.endpoint("b", 100))
	err := s.guest.Inside(func() error {
		for range 10 {
			c, err := net.ListenUDP("udp4", nil)
			if err != nil {
				return err
			}
			defer c.Close()
			first := byte(0)
			for range 10 {
				if err := c.SetDeadline(time.Now().Add(wait)); err != nil {
					return err
				}
				if _, err := c.WriteToUDPAddrPort([]byte("?"), netip.AddrPortFrom(vip[0], 53)); err != nil {
					return err
				}
				p := make([]byte, 9)
				if _, _, err := c.ReadFromUDPAddrPort(p); err != nil {
					return err
				}
				if first != 0 && p[0] != first {
					return fmt.Errorf("one socket was answered by %q and %q", first, p[0])
				}
				first = p[0]
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
