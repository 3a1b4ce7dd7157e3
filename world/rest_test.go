package world

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"pando.run/pando"
)

// resting returns the record of the nth released address.
func resting(t pando.Tenant, n int) pando.Rest {
	return pando.Rest{VIP: netip.AddrFrom4([4]byte{10, 127, byte(n >> 8), byte(n)}),
		Service: pando.ServiceKey{Tenant: t, Name: pando.ServiceName(fmt.Sprint("s", n))},
		At:      time.Unix(int64(n), 0)}
}

// A world reads the resting addresses from the store, and ends them when their records go.
func TestRestsComeFromTheStore(t *testing.T) {
	w, one, two := New(), resting("acme", 1), resting("acme", 2)
	w.Committed(pando.Txn{Put: []pando.Stored{one}}, 1)
	w.Committed(pando.Txn{Put: []pando.Stored{two}}, 2)
	if last, ok := w.LastVIP(one.Service); !ok || last != one.VIP {
		t.Errorf("the last address of %s is %s", one.Service, last)
	}
	if r, ok := w.Rests(two.VIP); !ok || r != two {
		t.Errorf("%s does not rest", two.VIP)
	}
	every := func(netip.Addr) bool { return true }
	if oldest, ok := w.OldestVIP(every); !ok || oldest != one.VIP {
		t.Errorf("%s rests longest, want %s", oldest, one.VIP)
	}
	w.Committed(pando.Txn{Delete: []pando.Key{one.Key()}}, 3)
	if _, ok := w.Rests(one.VIP); ok {
		t.Error("an address rests without its record")
	}
	if oldest, _ := w.OldestVIP(every); oldest != two.VIP {
		t.Errorf("%s rests longest", oldest)
	}
}

// The services of one tenant that come and go end no rest of another tenant.
func TestRestsHaveAShareForEachTenant(t *testing.T) {
	w := New()
	other := resting("bank", 0)
	w.Committed(pando.Txn{Put: []pando.Stored{other}}, 1)
	n := 1
	removed := func(tenant pando.Tenant) {
		txn := pando.Txn{Put: []pando.Stored{resting(tenant, n)}}
		if r, ok := w.BeyondRest(tenant); ok {
			txn.Delete = []pando.Key{r.Key()}
		}
		n++
		w.Committed(txn, pando.StoreRevision(n))
	}
	for range 2 * restBound.Total {
		removed("acme")
	}
	if int64(w.of["acme"]) != restBound.Each {
		t.Errorf("%d addresses of one tenant rest, want %d", w.of["acme"], restBound.Each)
	}
	if _, ok := w.Rests(other.VIP); !ok {
		t.Error("the address of another tenant rests no longer")
	}
	for _, tenant := range []pando.Tenant{"c", "d", "e", "f"} {
		for range restBound.Each {
			removed(tenant)
		}
	}
	if int64(len(w.vips)) != restBound.Total {
		t.Errorf("%d addresses rest, want %d", len(w.vips), restBound.Total)
	}
}
