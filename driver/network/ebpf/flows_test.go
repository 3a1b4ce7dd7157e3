package ebpf

import (
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"pando.run/pando"
)

// A key of the connection table has only part of the VIP. Every possible VIP must come out of its
// key again.
func TestAVIPIsKnownByItsLastBytes(t *testing.T) {
	if pando.VIPs4.Bits() < 16 || pando.VIPs6.Bits() < 64 {
		t.Fatalf("the VIPs %s and %s are not told apart by two and eight bytes (bpf/pando.h)",
			pando.VIPs4, pando.VIPs6)
	}
	rapid.Check(t, func(t *rapid.T) {
		four, six := pando.VIPs4.Addr().As4(), pando.VIPs6.Addr().As16()
		copy(four[2:], rapid.SliceOfN(rapid.Byte(), 2, 2).Draw(t, "IPv4"))
		copy(six[8:], rapid.SliceOfN(rapid.Byte(), 8, 8).Draw(t, "IPv6"))
		if a := netip.AddrFrom4(four); vipAt(vipOf(a)) != a {
			t.Errorf("%s became %s", a, vipAt(vipOf(a)))
		}
		if a := netip.AddrFrom16(six); vip6At(vip6Of(a)) != a {
			t.Errorf("%s became %s", a, vip6At(vip6Of(a)))
		}
	})
}
