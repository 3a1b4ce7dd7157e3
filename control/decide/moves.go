package decide

import (
	"fmt"
	"maps"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/lifecycle"
	"pando.run/pando/scale"
)

// drainAll writes drains until the transaction is full.
func (d *Draft) drainAll(moves []lifecycle.Move) {
	for _, m := range moves {
		if d.full() {
			return
		}
		d.drain(m.Drain, m.Reason)
	}
}

// mayStart reports whether an instance of a revision may start now. It applies the back-off after
// failures. wanted is the number of instances that there have to be.
func (d *Draft) mayStart(revision, wanted int) bool {
	past := d.history()
	w := lifecycle.BackOff(past.failures, revision, wanted, past.healed, past.started, d.now)
	if w.Until.IsZero() {
		return d.waits() == ""
	}
	d.lookAgain(w.Until)
	if !w.Recorded(d.decisions) {
		d.record(pando.DecidedBackOff, "", w.Reason(wanted), w.Inputs())
	}
	return false
}

// start asks and grants in one step, because control needs no permission to hold a bound. It
// reports whether an instance starts.
func (d *Draft) start(revision int, reason string) bool {
	return d.waits() == "" && d.place(d.grant(pando.VerbReplicate, reason), revision)
}

// carryOut writes moves until the transaction is full.
func (d *Draft) carryOut(moves []scale.Move) {
	for _, m := range moves {
		switch {
		case d.full():
			return
		case m.Drain != "":
			d.drain(m.Drain, m.Reason)
		case d.roomless != "":
			return
		case m.Warm:
			d.placeNew(d.grant(pando.VerbReplicate, m.Reason), d.serving(), pando.RoleReplica, true)
		default:
			d.start(d.serving(), m.Reason)
		}
	}
}

// failing returns how the service fails without end, or "".
func (d *Draft) failing(wanted int) string {
	past := d.history()
	w := lifecycle.BackOff(past.failures, d.serving(), wanted, past.healed, past.started, d.now)
	if !w.Failing {
		return ""
	}
	return fmt.Sprintf("%d failures without a success, the last because %s; starts are %s apart "+
		"(`pando logs %s`; a new deploy starts at once)", w.Failures, w.Last, w.For, d.svc.ServiceKey)
}

// healthy reports whether an instance has been in rotation for as long as a rollout wants it. If
// not, it schedules another look.
func (d *Draft) healthy(i pando.Instance) bool {
	spec, _ := d.spec(i.Revision)
	at := d.local(i).Since.Add(pando.Seconds(spec.Rollout.HealthySeconds))
	if d.now.Before(at) {
		d.lookAgain(at)
		return false
	}
	return true
}

// history returns the past of the service. It is read once, and only if a rule needs it.
func (d *Draft) history() *past {
	if d.past == nil {
		revisions := sync.OnceValue(func() map[pando.InstanceID]int {
			return lifecycle.Revisions(d.intents, d.crew.all)
		})
		of := func(i pando.InstanceID) int { return revisions()[i] }
		created := func(v pando.Decision) pando.StoreRevision { return d.w.CreatedOf(v.Key()) }
		d.past = &past{
			failures: lifecycle.Failures(d.localDecisions(), of, created),
			started:  lifecycle.LastStart(d.intents, d.placedAt),
			healed:   d.svc.Healed,
		}
		d.heal()
	}
	return d.past
}

// heal notes in the record of the service that an instance has succeeded, if failures came before.
// Otherwise the end of that instance would bring them back.
func (d *Draft) heal() {
	all := d.past.failures
	if len(all) == 0 || all[len(all)-1].Created <= d.svc.Healed {
		return
	}
	since := func(i *pando.Instance) time.Time { return d.local(*i).Since }
	created := func(i *pando.Instance) pando.StoreRevision {
		start := pando.Intent{ID: i.Intent, Service: i.Service}
		return max(d.w.CreatedOf(i.Key()), d.w.CreatedOf(start.Key()))
	}
	healed, next := lifecycle.HealedBy(d.crew.all, since, created, d.now)
	d.lookAgain(next)
	if healed > d.svc.Healed && all[0].Created < healed {
		d.svc.Healed, d.past.healed = healed, healed
	}
}

// stopFirst reports whether the service replaces its instances stop-first (lifecycle.StopFirst).
func (d *Draft) stopFirst() bool {
	var running []pando.Spec
	for revision, n := range d.crew.revisions {
		if n > 0 {
			s, _ := d.spec(revision)
			running = append(running, s)
		}
	}
	return lifecycle.StopFirst(d.newest(), running...)
}

// bounds returns the range of the service by its newest spec.
func (d *Draft) bounds() scale.Range { return scale.Bounds(d.newest(), d.svc.Pin, d.now) }

func with(a, b map[string]float64) map[string]float64 {
	out := maps.Clone(a)
	if out == nil {
		out = map[string]float64{}
	}
	maps.Copy(out, b)
	return out
}
