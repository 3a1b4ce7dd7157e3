package steering

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/driver/network/ebpf"
)

// The connections that an instance accepts show their round trip time, and the segments that it
// sends again while the client loses packets.
func TestTheTravelOfConnectionsIsMeasured(t *testing.T) {
	s := newStand(t, openTCX, "a", "b")
	for name, b := range s.boxes {
		serve(t, b, name)
	}
	d := s.Subject.(tcx).Driver
	s.publish(t, s.endpoint("a", 100), s.endpoint("b", 0))
	path := func(name string) pando.PathUse { return d.Path(s.boxes[name].Link.IfIndex) }
	if p := path("a"); p != (pando.PathUse{}) {
		t.Errorf("before a connection: %+v", p)
	}
	c := dialFrom(t, s.outside, netip.AddrPortFrom(vip[0], 80))
	ask := func(bytes string) {
		t.Helper()
		if _, err := c.ask(bytes); err != nil {
			t.Fatal(err)
		}
	}
	ask("100000")
	p := path("a")
	if p.Samples == 0 || p.RTT <= 0 {
		t.Errorf("after an answer: %+v", p)
	}
	lose(t, s)
	for range 20 {
		ask("200000")
	}
	if now := path("a"); now.Resent == p.Resent || now.Samples <= p.Samples {
		t.Errorf("the client lost packets: %+v, then %+v", p, now)
	}
	if p := path("b"); p != (pando.PathUse{}) {
		t.Errorf("an instance without connections has %+v", p)
	}
	disconnected(t, s, d)
}

// lose drops a tenth of the packets that the client outside receives.
func lose(t *testing.T, s *stand) {
	t.Helper()
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("nft")
	}
	check(t, s.outside.Inside(func() error {
		c := exec.Command("nft", "-f", "-")
		c.Stdin = strings.NewReader(`table inet loss {
  chain in { type filter hook input priority 0;
    meta l4proto tcp numgen random mod 10 0 drop
  }
}
`)
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}))
}

// disconnected checks that a link that is gone leaves no totals to the next one of its number.
func disconnected(t *testing.T, s *stand, d *ebpf.Driver) {
	t.Helper()
	l := s.boxes["a"].Link
	check(t, d.Disconnect(t.Context(), l))
	if p := d.Path(l.IfIndex); p != (pando.PathUse{}) {
		t.Errorf("after the end of the link: %+v", p)
	}
}
