package e2e

import (
	"net/netip"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/lab/labtest"
)

// A service has an address in each family, for the network and for its own host. A closed port
// refuses at once: curl exits with 7 (refused), not 28 (timed out).
func TestBothFamiliesAndARefusal(t *testing.T) {
	t.Parallel()
	p := labtest.Up(t)
	web := p.Deploy(labtest.Echo("web", "environment: {TEXT: here}"))
	four, six := netip.MustParseAddr(web.VIP).As4(), pando.VIPs6.Addr().As16()
	base := pando.VIPs4.Addr().As4()
	// Control gives a service the same number in both ranges.
	six[14], six[15] = four[2]-base[2], four[3]-base[3]
	for _, from := range []string{labtest.Client, p.Host()} {
		for _, vip := range []string{web.VIP, "[" + netip.AddrFrom16(six).String() + "]"} {
			out := p.Run(from, "curl", "-sS", "--max-time", "5", "http://"+vip+"/")
			if out.Code != 0 || !strings.Contains(out.Text, "here") {
				t.Errorf("from %s, http://%s/: %d %s", from, vip, out.Code, out.Text)
			}
			if out := p.Run(from, "curl", "-sS", "--max-time", "5", "http://"+vip+":81/"); out.Code != 7 {
				t.Errorf("from %s, port 81 of %s: curl ends with %d, want 7: %s", from, vip, out.Code, out.Text)
			}
		}
	}
}

// An instance reaches its own service by the VIP and by name: the host steers the packet, also to
// the instance itself.
func TestAnInstanceReachesItsOwnService(t *testing.T) {
	t.Parallel()
	p := labtest.Up(t)
	web := p.Deploy(labtest.Echo("web"))
	for _, to := range []string{web.VIP, "web.pando", "[" + web.Status().VIP6.String() + "]"} {
		if got := web.Get(labtest.Client, "/get?url=http://"+to+"/"); !strings.HasPrefix(got, "web-") {
			t.Errorf("an instance that asks %s got %q", to, got)
		}
	}
}
