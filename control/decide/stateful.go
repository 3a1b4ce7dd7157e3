package decide

import (
	"cmp"
	"fmt"

	"pando.run/pando"
	"pando.run/pando/lifecycle"
	"pando.run/pando/scale"
)

// ordinalRoll returns the ordinals of the service. A service that was removed with its volumes continues
// with its former ones.
func (d *Draft) ordinalRoll() *pando.Roll {
	if d.svc.Roll != nil {
		return d.svc.Roll
	}
	return d.w.Volumes[d.svc.ServiceKey].V.Roll
}

// ordinalHosts returns the facts of a stateful service.
func (d *Draft) ordinalHosts() lifecycle.Muster {
	spec, roll := d.newest(), d.ordinalRoll()
	m := lifecycle.Muster{
		Service: d.svc.Name, Bootstraps: len(spec.Hooks.Bootstrap) > 0,
		Recovers: len(spec.Hooks.Recover) > 0, Quorum: spec.Hooks.Quorum,
	}
	if roll != nil {
		m.Formed, m.Force = roll.Formed, roll.Force
	}
	wanted := scale.Bounds(spec, d.svc.Pin, d.now).Least
	m.Berths = make([]lifecycle.Berth, wanted)
	for n := range m.Berths {
		h := roll.Host(n + 1)
		m.Berths[n] = lifecycle.Berth{Ordinal: n + 1, Host: h, Here: h != "" && d.here(h)}
		m.Berths[n].Leaves, m.Berths[n].Drained = !TakesNew(d.w, h), Drained(d.w, h)
	}
	for n := range d.crew.all {
		i := &d.crew.all[n]
		if i.Ordinal <= wanted && lifecycle.HasVolumes(*i) {
			m.Berths[i.Ordinal-1].Instance = i
		}
	}
	return m
}

// ordinalsWait returns why no ordinal of a stateful service can start now, or "". blocked reports that
// the reason is not the start of another ordinal.
func (d *Draft) ordinalsWait() (why string, blocked bool) {
	if !d.newest().Stateful() || d.svc.Removing {
		return "", false
	}
	if s := d.ordinalHosts().Next(); s.Ordinal == 0 {
		return s.Why, s.Blocked
	}
	return "", false
}

// assignOrdinal gives a new instance of a stateful service its ordinal and its order. It returns the host
// with the volumes of the ordinal, or "" before its first start.
func (d *Draft) assignOrdinal(o *pando.Instance) pando.HostName {
	s := d.ordinalHosts().Next()
	o.Ordinal, o.Start = s.Ordinal, s.Start
	o.Reason = cmp.Or(s.Why, o.Reason)
	return d.ordinalRoll().Host(s.Ordinal)
}

// keepOrdinalHost records the host with the volumes of an ordinal.
func (d *Draft) keepOrdinalHost(o pando.Instance) {
	if roll := d.ordinalRoll(); d.svc.Roll == nil || roll.Host(o.Ordinal) != o.Host {
		d.svc.Roll = roll.With(o.Ordinal, o.Host)
	}
}

// orderOrdinals orders ordinals with a reported position to start, as far as the facts allow.
func (d *Draft) orderOrdinals() {
	if !d.newest().Stateful() || d.svc.Removing {
		return
	}
	d.noteFormed()
	m := d.ordinalHosts()
	d.drainAll(m.Strays())
	s := m.Elect()
	if s.Ordinal == 0 {
		return
	}
	o := *m.Berths[s.Ordinal-1].Instance
	o.Start, o.Reason = s.Start, s.Why
	d.putInstance(o)
	if s.Start == pando.StartBootstrap {
		d.record(pando.DecidedRecover, o.ID, fmt.Sprintf("%s bootstraps: %s",
			pando.OrdinalName(d.svc.Name, o.Ordinal), s.Why), nil)
	}
}

// noteFormed notes that the service has served, and that a forced bootstrap has succeeded.
func (d *Draft) noteFormed() {
	serves := d.count().Serving > 0
	if roll := d.svc.Roll; serves && roll != nil && (!roll.Formed || roll.Force > 0) {
		next := *roll
		next.Formed, next.Force = true, 0
		d.svc.Roll = &next
	}
}

// shedOrdinals drains the ordinals beyond the most of a stateful service.
func (d *Draft) shedOrdinals(r scale.Range) bool {
	if !d.newest().Stateful() || d.count().Capacity <= r.Most {
		return false
	}
	d.drainAll(lifecycle.LeaveLast(d.crew.all, r.Most, "more than wanted ("+r.Why+")"))
	return true
}

// inOrder returns the drains of a service that may begin now: all of them, or one of a stateful
// service.
func (d *Draft) inOrder(moves []lifecycle.Move) []lifecycle.Move {
	if !d.newest().Stateful() {
		return moves
	}
	return lifecycle.OneByOne(moves, d.crew.all, d.ordinalHosts().Steady())
}
