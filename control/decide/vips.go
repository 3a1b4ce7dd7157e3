package decide

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"pando.run/pando"
	"pando.run/pando/world"
)

// VIPs are the addresses that services of one tenant may have.
type VIPs struct {
	w      *world.World
	tenant pando.Tenant
	mine   netip.Prefix   // of the tenant alone; invalid: any that no other tenant has
	others []netip.Prefix // of other tenants alone
}

// VIPsOf returns the addresses that a tenant may use.
func VIPsOf(w *world.World, t pando.Tenant) VIPs {
	v := VIPs{w: w, tenant: t, mine: w.Tenants[t].V.VIPs}
	if v.mine.IsValid() {
		return v // ranges do not overlap
	}
	for _, a := range w.Tenants {
		if a.V.VIPs.IsValid() {
			v.others = append(v.others, a.V.VIPs)
		}
	}
	return v
}

// usable reports whether a service of the tenant may have an address.
func (v VIPs) usable(v4 netip.Addr) bool {
	if v4 == pando.Gateway4 || pando.IsFront(v4) || !pando.VIPs4.Contains(v4) {
		return false
	}
	if v.mine.IsValid() {
		return v.mine.Contains(v4)
	}
	return !slices.ContainsFunc(v.others, func(p netip.Prefix) bool { return p.Contains(v4) })
}

// free reports whether no service has a usable address. It may rest.
func (v VIPs) free(v4 netip.Addr) bool {
	_, taken := v.w.HasVIP(v4)
	return !taken && v.usable(v4)
}

// each calls f with the usable addresses in order, until f returns false.
func (v VIPs) each(f func(netip.Addr) bool) {
	first := binary.BigEndian.Uint32(pando.VIPs4.Addr().AsSlice())
	from, to := uint32(1), uint32(1<<16-1)
	if v.mine.IsValid() {
		at := binary.BigEndian.Uint32(v.mine.Addr().AsSlice()) - first
		from, to = max(from, at), min(to, at+1<<(32-v.mine.Bits()))
	}
	for n := from; n < to; n++ {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], first+n)
		if v4 := netip.AddrFrom4(b); v.usable(v4) && !f(v4) {
			return
		}
	}
}

// Next returns the address for a service: the one that it had before it was removed, else the lowest
// that no service has or had lately, else the one that rests longest.
func (v VIPs) Next(s pando.ServiceKey) (vip netip.Addr, ok bool) {
	if last, ok := v.w.LastVIP(s); ok && v.free(last) {
		return last, true
	}
	v.each(func(a netip.Addr) bool {
		_, rests := v.w.Rests(a)
		if !rests && v.free(a) {
			vip, ok = a, true
		}
		return !ok
	})
	if ok {
		return vip, true
	}
	return v.w.OldestVIP(v.free)
}

// UsedUp returns why one more service of the tenant would have no address, or "". Services that wait
// for an address come first.
func (v VIPs) UsedUp() string {
	waiting := 0
	for s := range v.w.Services {
		if s.Tenant == v.tenant && !v.w.Services[s].V.VIP4.IsValid() {
			waiting++
		}
	}
	free, usable, used := 0, 0, 0
	v.each(func(a netip.Addr) bool {
		usable++
		if v.free(a) {
			free++
		} else {
			used++
		}
		return free <= waiting
	})
	if free > waiting {
		return ""
	}
	of := v.mine
	if !of.IsValid() {
		of = pando.VIPs4
	}
	wait := ""
	if waiting > 0 {
		wait = fmt.Sprintf(", and %d services wait for one", waiting)
	}
	return fmt.Sprintf("%d of %d addresses of %s are in use%s; remove a service (`pando rm NAME`), or "+
		"let an operator widen the range (`pando tenant set %s --vips`)", used, usable, of, wait,
		v.tenant)
}

// address gives a new service its VIPs. Only the leader assigns VIPs, so two services never get the
// same.
func (d *Draft) address() {
	if d.svc.VIP4.IsValid() || d.svc.Removing {
		return
	}
	all := VIPsOf(d.w, d.svc.Tenant)
	v4, ok := all.Next(d.svc.ServiceKey)
	if !ok { // the range became smaller after the deploy
		d.waitForAddress(all.UsedUp())
		return
	}
	first := binary.BigEndian.Uint32(pando.VIPs4.Addr().AsSlice())
	six := pando.VIPs6.Addr().As16()
	binary.BigEndian.PutUint32(six[12:], binary.BigEndian.Uint32(v4.AsSlice())-first)
	d.svc.VIP4, d.svc.VIP6 = v4, netip.AddrFrom16(six)
	if r, rests := d.w.Rests(v4); rests {
		d.deletes = append(d.deletes, r.Key())
	}
}

// waitForAddress records the reason for which a service has no address, once in quotaNote. A change
// of the tenant, and the end of another service, make it look again.
func (d *Draft) waitForAddress(why string) {
	d.lookAgain(d.now.Add(QuotaLook))
	const begin = "it waits for an address: "
	lately := slices.ContainsFunc(d.decisions, func(o pando.Decision) bool {
		return o.Kind == pando.DecidedQuota && d.now.Sub(o.At) < quotaNote &&
			len(o.Reason) > len(begin) && o.Reason[:len(begin)] == begin
	})
	if !lately {
		d.record(pando.DecidedQuota, "", begin+why, nil)
	}
}

// retireVIP lets the address of a removed service rest.
func (d *Draft) retireVIP() {
	if !d.svc.VIP4.IsValid() {
		return
	}
	if r, ok := d.w.BeyondRest(d.svc.Tenant); ok {
		d.deletes = append(d.deletes, r.Key())
	}
	r := pando.Rest{VIP: d.svc.VIP4, Service: d.svc.ServiceKey, At: d.now}
	d.puts[r.Key()] = r
}
