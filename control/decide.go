package control

import (
	"slices"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/lifecycle"
	"pando.run/pando/scale"
	"pando.run/pando/world"
)

// self is the asker of control's own intents and decisions.
var self = pando.Asker{Kind: pando.AskerControl}

// Decide returns one transaction for one service and the time of the next look (zero: after the
// next change). It is a function of the world, the time and the asks that the store does not have
// yet. The transaction writes these asks together with their answers.
func Decide(
	w *world.World, s pando.ServiceKey, now time.Time, ids pando.IDs, asks ...pando.Intent,
) (pando.Txn, time.Time) {
	l, ok := newLedger(w, s, now, ids)
	if !ok {
		return pando.Txn{}, time.Time{}
	}
	l.addAsks(asks)
	d := &draft{placer: &placer{ledger: l}, earlier: scale.Grants(l.intents, now)}
	d.address()
	d.liftPin()
	d.keep()
	d.evacuate()
	d.abandon()
	d.answerAsks()
	shift{d}.work()
	shift{d}.endOnce()
	ordinals{d}.assemble()
	d.replaceUnwell()
	switch spec, known := d.spec(d.serving()); {
	case d.svc.Removing:
		d.remove()
	case !known:
		// The revision's record arrives with the service's record, in a later message.
	case d.newest().IsJob():
		shift{d}.judge()
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

// introduce returns what may be written about a service before its first decision: its address and
// its endpoints. Hosts know a service by its endpoints only.
func introduce(w *world.World, s pando.ServiceKey, now time.Time, ids pando.IDs) pando.Txn {
	l, ok := newLedger(w, s, now, ids)
	if !ok {
		return pando.Txn{}
	}
	(&draft{placer: &placer{ledger: l}}).address()
	return l.txn()
}

// draft is one decision in the making. It passes the facts of the ledger to the rules of scale and
// lifecycle, in order. It writes their moves into the ledger.
type draft struct {
	*placer
	list     []pando.Instance // the result of reachable
	listed   int              // the changes of the crew that the list has
	listHome pando.HostName
	earlier  []scale.Grant // of the last second
	given    []scale.Grant // by this decision
	past     *past
	after    []pando.ServiceName // leave before this service does
}

// past holds the earlier failures and starts of the service. A decision does not change them.
type past struct {
	failures []lifecycle.Failure // their times are on the clock of this process
	started  time.Time           // when control itself last placed an instance
	healed   pando.StoreRevision // the last commit that created an instance which succeeded
}

// history returns the past of the service. It is read once, and only if a rule needs it.
func (d *draft) history() *past {
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
func (d *draft) heal() {
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

// reach returns a function that reports whether the instances of a host count (lifecycle.Counts).
// It returns the home that the function rests on.
func (d *draft) reach() (on func(pando.HostName) bool, home pando.HostName) {
	if len(d.w.Hosts) == 0 {
		return func(pando.HostName) bool { return true }, ""
	}
	home = d.home()
	return func(h pando.HostName) bool { return lifecycle.Counts(h, home, d.here(h)) }, home
}

// count returns the number of instances that count.
func (d *draft) count() scale.Count {
	on, _ := d.reach()
	return d.crew.count(on)
}

// reachable returns the instances that count. The list is made again after a change.
func (d *draft) reachable() []pando.Instance {
	on, home := d.reach()
	if d.listed != d.crew.changes || d.listHome != home {
		d.list, d.listed, d.listHome = onHosts(d.crew.all, on), d.crew.changes, home
	}
	return d.list
}

// onHosts returns the instances on some hosts. It returns the same slice if those are all.
func onHosts(all []pando.Instance, on func(pando.HostName) bool) []pando.Instance {
	if !slices.ContainsFunc(all, func(i pando.Instance) bool { return !on(i.Host) }) {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), func(i pando.Instance) bool { return !on(i.Host) })
}

// leased returns the instances on hosts with a lease.
func leased(w *world.World, all []pando.Instance) []pando.Instance {
	return onHosts(all, func(h pando.HostName) bool { return here(w, h) })
}

// bounds returns the range of the service by its newest spec.
func (d *draft) bounds() scale.Range { return scale.Bounds(d.newest(), d.svc.Pin, d.now) }

// stopFirst reports whether the service replaces its instances stop-first (lifecycle.StopFirst).
func (d *draft) stopFirst() bool {
	var running []pando.Spec
	for revision, n := range d.crew.revisions {
		if n > 0 {
			s, _ := d.spec(revision)
			running = append(running, s)
		}
	}
	return lifecycle.StopFirst(d.newest(), running...)
}

// budget returns the limits against which the next ask is checked.
func (d *draft) budget() scale.Budget {
	return scale.Budget{
		Scale: d.newest().Scale, Pin: d.svc.Pin, Removing: d.svc.Removing,
		StopFirst: d.stopFirst(), Count: d.count(), Beyond: d.forbidden(),
		Grants: scale.MergeGrants(d.given, d.earlier),
	}
}

// answerAsks grants, refuses or coalesces every waiting ask, in the order in which they were asked.
func (d *draft) answerAsks() {
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

func (d *draft) answerReplicate(i pando.Intent) {
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

func (d *draft) answerHalt(i pando.Intent) {
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
