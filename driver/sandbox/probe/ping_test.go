package probe

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"

	"pando.run/pando"
)

// elsewhere is a sandbox at addresses of the test's choice.
type elsewhere struct {
	loopback
	link pando.Link
}

func (e elsewhere) Link() pando.Link { return e.link }

// All addresses have to answer.
func TestPing(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, for a raw socket")
	}
	here4, here6 := netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()
	nowhere := netip.MustParseAddr("255.255.255.254") // a class E address, to which there is no way
	for name, c := range map[string]struct {
		link pando.Link
		want string
	}{
		"by IPv4":              {pando.Link{IP4: here4}, ""},
		"by both":              {pando.Link{IP4: here4, IP6: here6}, ""},
		"no answer by IPv4":    {pando.Link{IP4: nowhere, IP6: here6}, "probe ping of web-1: "},
		"without any address":  {pando.Link{}, "no address"},
		"another on this host": {pando.Link{IP4: netip.MustParseAddr("127.9.9.9")}, ""},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		err := New().Probe(ctx, pando.Probe{Kind: pando.ProbePing}, elsewhere{link: c.link}, pando.Port{})
		cancel()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := ping(ctx, here4); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled probe: %v", err)
	}
}
