package host

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/console/consoletest"
)

func TestAHostWithoutANetworkHasNoAddress(t *testing.T) {
	given := netip.MustParseAddr("10.126.0.1")
	for a, want := range map[netip.Addr]string{{}: "-", given: "10.126.0.1"} {
		if got := hostAddress(a); got != want {
			t.Errorf("%v is shown as %q, want %q", a, got, want)
		}
	}
}

func TestHostsShowsLabels(t *testing.T) {
	var b bytes.Buffer
	hosts(&b, []pando.HostStatus{
		{Host: pando.Host{Name: "h1", Labels: "disk=ssd zone=a"}}, {Host: pando.Host{Name: "h2"}},
	}, consoletest.Noon)
	for _, want := range []string{"LABELS", "disk=ssd zone=a"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("want %q in\n%s", want, b.String())
		}
	}
}
