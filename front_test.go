package pando

import (
	"net/netip"
	"testing"
)

// The fronts of all hosts are VIPs, differ, and are no VIP of a service.
func TestFronts(t *testing.T) {
	seen := map[netip.Addr]bool{}
	for slot := range HostSlots {
		v4, v6 := Front(slot)
		for _, a := range []netip.Addr{v4, v6} {
			if seen[a] || !IsFront(a) || !VIPs4.Contains(a) && !VIPs6.Contains(a) {
				t.Fatalf("slot %d has the front %s", slot, a)
			}
			seen[a] = true
		}
	}
	for _, vip := range []string{"10.127.0.1", "10.127.251.255", "fd70:616e:646f:ffff::fc01"} {
		if IsFront(netip.MustParseAddr(vip)) {
			t.Errorf("%s is a front", vip)
		}
	}
	v4, v6 := Front(258)
	if v4.String() != "10.127.253.2" || v6.String() != "fd70:616e:646f:ffff:0:1:0:102" {
		t.Errorf("slot 258 has %s and %s", v4, v6)
	}
}
