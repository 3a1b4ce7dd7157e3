package world

import (
	"cmp"
	"net/netip"

	"pando.run/pando"
	"pando.run/pando/access/share"
)

// restBound bounds the released VIPs that rest. Each tenant has a share, so that the short-lived
// services of one do not end the rest of the others.
var restBound = share.Bound{Total: 1000, Each: 250}

// rests are the released VIPs and slots, as stored.
type rests struct {
	vips  map[netip.Addr]Versioned[pando.Rest]
	slots map[int]Versioned[pando.Rest]
	of    map[pando.Tenant]int // resting VIPs
}

func newRests() rests {
	return rests{map[netip.Addr]Versioned[pando.Rest]{}, map[int]Versioned[pando.Rest]{},
		map[pando.Tenant]int{}}
}

func (l *rests) rest(r Versioned[pando.Rest]) {
	if !r.V.VIP.IsValid() {
		l.slots[r.V.Slot] = r
		return
	}
	l.wake(r.V.VIP)
	l.vips[r.V.VIP] = r
	l.of[r.V.Service.Tenant]++
}

// unrest removes a record.
func (l *rests) unrest(r pando.Rest) {
	if !r.VIP.IsValid() {
		delete(l.slots, r.Slot)
		return
	}
	l.wake(r.VIP)
}

func (l *rests) wake(vip netip.Addr) {
	if was, ok := l.vips[vip]; ok {
		delete(l.vips, vip)
		if l.of[was.V.Service.Tenant]--; l.of[was.V.Service.Tenant] == 0 {
			delete(l.of, was.V.Service.Tenant)
		}
	}
}

// Rests returns the record of a VIP that was lately the address of a service that is removed.
func (l *rests) Rests(vip netip.Addr) (r pando.Rest, ok bool) {
	v, ok := l.vips[vip]
	return v.V, ok
}

// SlotRests returns the record of a slot whose host was removed.
func (l *rests) SlotRests(slot int) (r Versioned[pando.Rest], ok bool) {
	r, ok = l.slots[slot]
	return r, ok
}

// LastVIP returns the last address of a removed service, if it rests.
func (l *rests) LastVIP(s pando.ServiceKey) (vip netip.Addr, ok bool) {
	r, ok := l.oldest(func(r pando.Rest) bool { return r.Service == s })
	return r.VIP, ok
}

// OldestVIP returns the VIP that rests longest among those that fit.
func (l *rests) OldestVIP(fits func(netip.Addr) bool) (vip netip.Addr, ok bool) {
	r, ok := l.oldest(func(r pando.Rest) bool { return fits(r.VIP) })
	return r.VIP, ok
}

// BeyondRest returns the record that ends when one more VIP of a tenant rests, if one does.
func (l *rests) BeyondRest(t pando.Tenant) (r pando.Rest, ok bool) {
	switch {
	case int64(l.of[t]) >= restBound.Each:
		return l.oldest(func(r pando.Rest) bool { return r.Service.Tenant == t })
	case int64(len(l.vips)) >= restBound.Total:
		return l.oldest(func(pando.Rest) bool { return true })
	}
	return r, false
}

// oldest returns the resting VIP that was released first among those that fit, by the order of the
// store: clocks of leaders differ.
func (l *rests) oldest(fits func(pando.Rest) bool) (_ pando.Rest, ok bool) {
	var out Versioned[pando.Rest]
	for _, r := range l.vips {
		if !fits(r.V) {
			continue
		}
		c := cmp.Compare(r.Modified, out.Modified)
		if !ok || c < 0 || c == 0 && r.V.VIP.Less(out.V.VIP) {
			out, ok = r, true
		}
	}
	return out.V, ok
}
