package decide

import (
	"fmt"
	"slices"
	"time"

	"pando.run/pando"
	"pando.run/pando/lifecycle"
)

// EvenAfter is how long a host is there before instances of spread services move to it. A host that
// comes and goes moves none.
const EvenAfter = 30 * time.Second

// EvenLook is the time between two looks at the spread of a service. No event of the service reports
// a new host.
const EvenLook = 30 * time.Second

// even moves one instance of a service that spreads, while the counts differ by two or more: it
// starts another one on the emptiest host, and drains the instance that this one replaces once it is
// in rotation. It moves nothing while an instance of the service is on its way.
func (d *Draft) even() {
	d.relieve()
	if !d.spreads() || d.newest().Stateful() || d.stopFirst() || d.full() ||
		d.svc.Removing || d.svc.Rolling > 0 || d.svc.Renew != nil || d.svc.Shift != nil ||
		d.svc.Current != d.svc.Target {
		return
	}
	most := 0
	for _, n := range d.crew.counts {
		most = max(most, n.Capacity)
	}
	if most < 2 {
		return // no two hosts differ by two; the usual end
	}
	d.lookAgain(d.now.Add(EvenLook))
	list := d.reachable()
	if slices.ContainsFunc(list, func(i pando.Instance) bool {
		return !i.Warm && i.Phase != pando.PhaseInRotation || i.Replaces != "" && d.crew.has(i.Replaces)
	}) {
		return
	}
	spec, known := d.spec(d.serving())
	if !known || d.waits() != "" {
		return
	}
	to, _, err := lifecycle.Place(d.hosts(), d.wish(spec, "", d.fellows(d.serving(), false)))
	if err != nil || !d.settled(to) {
		return
	}
	leaves := lifecycle.Evens(list, to.Name, d.groupOf)
	if leaves == "" || !d.mayStart(d.serving(), d.count().Capacity+1) {
		return
	}
	d.replaces = leaves
	// A reserve may be anywhere, so none is claimed.
	d.placeNew(d.grant(pando.VerbReplicate, fmt.Sprintf("it evens the spread, in place of %s", leaves)),
		d.serving(), d.role(), false)
	d.replaces = ""
}

// settled reports whether a host has been there for long enough.
func (d *Draft) settled(h pando.Host) bool {
	at, _ := d.w.SinceOf(h.Key())
	return at.IsZero() || d.now.Sub(at) >= EvenAfter
}

// groupOf returns the hosts that count as one in the spread of the service: the value of the label,
// or the host.
func (d *Draft) groupOf(h pando.HostName) string {
	if label := d.newest().Place.Spread; label != pando.SpreadHost {
		return d.w.Hosts[h].V.Label(label)
	}
	return string(h)
}
