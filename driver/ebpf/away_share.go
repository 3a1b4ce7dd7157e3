package ebpf

import (
	"fmt"

	"pando.run/pando"
	bounded "pando.run/pando/access/share"
)

// awayBound is the endpoints of other hosts to which a host steers: the slots of bpf/pando.h that are
// not for endpoints of this host.
var awayBound = bounded.Bound{Total: slotsAway, Each: slotsAway / 4, Reserve: slotsAway / 16}

const slotsAway = 32768 - endpointsMax // SLOTS_MAX of bpf/pando.h

// aways counts the endpoints of other hosts by the tenants of their services.
type aways struct {
	of  map[uint32]pando.Tenant // by slot
	use map[pando.Tenant]int64
}

func newAways() aways {
	return aways{of: map[uint32]pando.Tenant{}, use: map[pando.Tenant]int64{}}
}

// admits returns why a tenant may have no more endpoints on other hosts, or nil.
func (a aways) admits(t pando.Tenant) error {
	all := int64(len(a.of))
	u := bounded.Use{All: all, Owners: all - a.use[pando.DefaultTenant], Own: a.use[t]}
	err := awayBound.Admits(u, 1)
	if t == pando.DefaultTenant {
		err = awayBound.AdmitsOperator(u, 1)
	}
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: this host steers to endpoints of other hosts, and tenant %s has its share: %w",
		pando.ErrTooLarge, t, err)
}

// note counts a slot for a tenant.
func (a aways) note(slot uint32, t pando.Tenant) {
	a.forget(slot)
	a.of[slot] = t
	a.use[t]++
}

func (a aways) forget(slot uint32) {
	t, known := a.of[slot]
	if !known {
		return
	}
	delete(a.of, slot)
	if a.use[t]--; a.use[t] == 0 {
		delete(a.use, t)
	}
}
