// Package decide decides about one service. It passes what the store says to the rules of the rooms
// scale and lifecycle, in order, and collects what they say as one transaction.
//
// It reads no clock and takes no lock, and it does no I/O: the same world, time and asks give the same
// transaction. An operator's question about a decision (Fits, a move, a drain) is a method of Draft.
package decide

import (
	"time"

	"pando.run/pando"
	"pando.run/pando/scale"
	"pando.run/pando/world"
)

// Decide returns one transaction for one service and the time of the next look (zero: after the
// next change). It is a function of the world, the time and the asks that the store does not have
// yet. The transaction writes these asks together with their answers.
func Decide(
	w *world.World, s pando.ServiceKey, now time.Time, ids pando.IDs, asks ...pando.Intent,
) (pando.Txn, time.Time) {
	d, ok := About(w, s, now, ids)
	if !ok {
		return pando.Txn{}, time.Time{}
	}
	d.addAsks(asks)
	d.earlier = scale.Grants(d.intents, now)
	d.address()
	d.liftPin()
	d.keep()
	d.evacuate()
	d.abandon()
	d.answerAsks()
	d.workRuns()
	d.endOnce()
	d.orderOrdinals()
	d.replaceUnwell()
	switch spec, known := d.spec(d.serving()); {
	case d.svc.Removing:
		d.remove()
	case !known:
		// The revision's record arrives with the service's record, in a later message.
	case d.newest().IsJob():
		d.judgeRuns()
	case d.rolling():
		d.roll()
	default:
		d.hold(spec)
	}
	d.keep() // the first instance may have found its host
	d.judge()
	d.trim()
	return d.txn(), d.wake
}

// budget returns the limits against which the next ask is checked.
func (d *Draft) budget() scale.Budget {
	return scale.Budget{
		Scale: d.newest().Scale, Pin: d.svc.Pin, Removing: d.svc.Removing,
		StopFirst: d.stopFirst(), Count: d.count(), Beyond: d.forbidden(),
		Grants: scale.MergeGrants(d.given, d.earlier),
	}
}

// Introduce returns what may be written about a service before its first decision: its address and
// its endpoints. Hosts know a service by its endpoints only.
func Introduce(w *world.World, s pando.ServiceKey, now time.Time, ids pando.IDs) pando.Txn {
	d, ok := About(w, s, now, ids)
	if !ok {
		return pando.Txn{}
	}
	d.address()
	return d.txn()
}

// answerAsks grants, refuses or coalesces every waiting ask, in the order in which they were asked.
func (d *Draft) answerAsks() {
	for _, i := range d.intents {
		if i.State != pando.IntentAsked {
			continue
		}
		if d.full() {
			return
		}
		switch i.Verb {
		case pando.VerbReplicate:
			d.answerReplicate(i)
		case pando.VerbHalt:
			d.answerHalt(i)
		}
	}
}

func (d *Draft) answerReplicate(i pando.Intent) {
	v := scale.Replicate(d.budget(), i.By, d.now)
	i.Inputs = with(i.Inputs, v.Inputs)
	switch v.State {
	case pando.IntentGranted:
		revision := d.serving()
		if d.svc.Rolling > 0 {
			d.svc.Rolling++
		}
		if d.rolling() {
			revision = d.svc.Target
			if d.svc.Paused() || d.svc.Soaking() {
				revision = d.svc.Current
			}
		}
		d.place(i.Become(v.State, d.now, v.Reason), revision)
		if placed, ok := d.puts[i.Key()].(pando.Intent); ok {
			d.given = append(d.given, scale.Grants([]pando.Intent{placed}, d.now)...)
		}
	case pando.IntentCoalesced:
		i.Instance = v.With.Instance
		d.putIntent(i.Become(v.State, d.now, v.Reason))
	default:
		i.Instance = ""
		d.putIntent(i.Become(v.State, d.now, v.Reason))
	}
}

func (d *Draft) answerHalt(i pando.Intent) {
	o, ok := d.crew.get(i.Instance)
	if !ok {
		d.putIntent(i.Become(pando.IntentRefused, d.now, "there is no such instance"))
		return
	}
	v := scale.Halt(d.budget(), o, i.By, d.now)
	i.Inputs = with(i.Inputs, v.Inputs)
	i = i.Become(v.State, d.now, v.Reason)
	if v.State != pando.IntentGranted {
		d.putIntent(i)
		return
	}
	if d.svc.Rolling > 0 && o.Revision == d.svc.Target {
		d.svc.Rolling = max(1, d.svc.Rolling-1)
	}
	walk := i.By.Kind != pando.AskerInstance
	d.takeOut(o, i, walk, v.Reason)
}
