package world

import (
	"fmt"
	"net/netip"
	"testing"

	"pando.run/pando"
)

// The address of a removed service rests while fewer than restingMax others were removed after it.
func TestTheAddressOfARemovedServiceRests(t *testing.T) {
	w, at := New(), pando.StoreRevision(0)
	vip := func(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 127, byte(n >> 8), byte(n)}) }
	removed := func(n int) pando.ServiceKey {
		s := pando.Service{ServiceKey: pando.DefaultService(pando.ServiceName(fmt.Sprint("s", n))),
			VIP4: vip(n)}
		at++
		w.Committed(pando.Txn{Put: []pando.Stored{s}}, at)
		if w.Rests(vip(n)) {
			t.Fatalf("the address of a living service rests")
		}
		at++
		w.Committed(pando.Txn{Delete: []pando.Key{s.Key()}}, at)
		return s.ServiceKey
	}
	first := removed(0)
	if last, ok := w.LastVIP(first); !ok || last != vip(0) || !w.Rests(vip(0)) {
		t.Errorf("the last address of %s is %s", first, last)
	}
	w = w.Next() // a new snapshot of the store
	for n := 1; n < restingMax; n++ {
		removed(n)
	}
	if !w.Rests(vip(0)) || len(w.resting) != restingMax {
		t.Errorf("%d addresses rest, want %d", len(w.resting), restingMax)
	}
	removed(restingMax)
	if _, ok := w.LastVIP(first); ok || w.Rests(vip(0)) || len(w.resting) != restingMax {
		t.Errorf("%d addresses rest, the first among them", len(w.resting))
	}
}
