package liveness

import (
	"net/netip"
	"testing"
	"time"
)

// A new host probes this one before this one has its record. Its packets are not forged, and those
// of a stranger are.
func TestANewHostForgesNothing(t *testing.T) {
	now := time.Unix(1, 0)
	host, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	known := map[netip.Addr]bool{}
	watched := func(a netip.Addr) bool { return known[a] }
	var s strangers
	for range 3 {
		s.note(host, now)
		s.note(other, now)
	}
	if n := s.total(now, watched); n != 0 {
		t.Errorf("%d packets are forged at once, want 0", n)
	}
	known[host] = true
	if n := s.total(now.Add(time.Second), watched); n != 0 {
		t.Errorf("%d packets are forged after a second, want 0", n)
	}
	delete(known, host) // it leaves again
	for want := range uint64(2) {
		if n := s.total(now.Add(recordWithin), watched); n != 3 {
			t.Errorf("look %d: %d packets are forged, want those of the stranger, 3", want, n)
		}
	}
}

// Many addresses take no memory: their packets count at once.
func TestStrangersAreBounded(t *testing.T) {
	var s strangers
	at := netip.MustParseAddr("10.0.0.0")
	for range strangersMax + 7 {
		at = at.Next()
		s.note(at, time.Unix(1, 0))
	}
	no := func(netip.Addr) bool { return false }
	if n := s.total(time.Unix(1, 0), no); n != 7 || len(s.of) != strangersMax {
		t.Errorf("%d packets are forged and %d wait, want 7 and %d", n, len(s.of), strangersMax)
	}
	if n := s.total(time.Unix(9, 0), no); n != strangersMax+7 || len(s.of) != 0 {
		t.Errorf("%d packets are forged and %d wait, want %d and none", n, len(s.of), strangersMax+7)
	}
}
