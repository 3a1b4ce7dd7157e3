package decide

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"pando.run/pando"
	"pando.run/pando/lifecycle"
	"pando.run/pando/scale"
)

// liftPin ends an expired pin.
func (d *Draft) liftPin() {
	p := d.svc.Pin
	switch {
	case p == nil:
	case p.Holds(d.now):
		d.lookAgain(p.Until)
	default:
		if d.leavePin(*p); d.full() {
			return // more instances have to drain: the pin's record stays until then
		}
		d.svc.Pin = nil
		d.record(pando.DecidedUnpin, "", fmt.Sprintf("the pin of %d by %s ended", p.Instances, p.By), nil)
	}
}

// leavePin drains the instances that a pin added.
func (d *Draft) leavePin(p pando.Pin) {
	stay, why, ok := scale.AfterPin(p, d.newest().Scale)
	switch {
	case !ok || d.svc.Removing || d.newest().Stateful(): // those shed ordinals in their order
	case d.svc.Rolling > 0:
		d.svc.Rolling = min(d.svc.Rolling, stay)
	default:
		d.carryOut(scale.Shed(d.reachable(), d.count().Capacity-stay, why))
	}
}

// evacuate drains the instances on leaving hosts.
func (d *Draft) evacuate() {
	leaving := func(h pando.HostName) bool { return d.w.Hosts[h].V.Leaving }
	d.drainAll(lifecycle.Evacuate(d.crew.all, leaving))
}

// abandon drains the instances on hosts that are away, if their service spreads and another host
// takes their place. A service on one host moves as a whole instead (lifecycle.BringHome).
func (d *Draft) abandon() {
	if d.svc.Removing || d.newest().Stateful() || !d.spreads() {
		return
	}
	// Nearly every decision ends here, and does not look at the hosts of the cluster.
	if away := lifecycle.Abandon(d.crew.all, d.here); len(away) > 0 && len(d.fitting()) > 0 {
		d.drainAll(away)
	}
}

// remove drains all instances of the service. It deletes the service's records when no instance is
// left.
func (d *Draft) remove() {
	d.dropInstances(lifecycle.Lost(d.crew.all, d.here))
	if len(d.crew.all)+len(d.parts) == 0 {
		d.forget()
		return
	}
	if d.after = leavesAfter(d.w, d.svc.ServiceKey); len(d.after) > 0 {
		d.lookAgain(d.now.Add(stopLook))
		return
	}
	if d.newest().Stateful() {
		d.drainAll(lifecycle.LeaveLast(d.crew.all, 0, "the service is being removed"))
		return
	}
	d.drainAll(lifecycle.Removal(d.crew.all))
}

// hold keeps a service outside a rollout within its bounds, its reserve filled, and its instances
// at home.
func (d *Draft) hold(spec pando.Spec) {
	r := d.restored(scale.Bounds(spec, d.svc.Pin, d.now))
	if d.svc.Pin == nil {
		r = r.Ended(lifecycle.Ended(d.decisions, spec.Restart))
	}
	if d.shedOrdinals(r) {
		return
	}
	r = d.widened(r)
	if d.spreads() || d.svc.Renew != nil {
		r.Most += Replacing(d.reachable())
	}
	now := d.inParts(r)
	if d.count().Capacity >= now.Least || d.mayStart(d.serving(), now.Least) {
		d.carryOut(scale.Hold(now, d.reachable(), d.stopFirst()))
	}
	drains, starts := scale.KeepWarm(d.reachable(), spec.Scale.Warm, d.serving())
	d.carryOut(drains)
	if len(starts) > 0 && d.mayStart(d.serving(), d.count().Capacity+spec.Scale.Warm) {
		d.carryOut(starts)
	}
	if d.svc.Current != 0 {
		d.drainAll(d.inOrder(
			lifecycle.Strangers(d.reachable(), d.serving(), d.alike(d.serving()))))
	}
	d.renew()
	d.leaveHosts()
	d.even()
	d.bringHome(r)
}

// restored returns the range of a service whose last rollout did not finish: the number that it had
// before is the least, until that many instances of the serving revision are there again.
func (d *Draft) restored(r scale.Range) scale.Range {
	if d.svc.Rolling == 0 {
		return r
	}
	wanted := min(d.svc.Rolling, r.Most)
	same := d.alike(d.serving())
	stay := slices.DeleteFunc(slices.Clone(d.reachable()), func(i pando.Instance) bool {
		return i.Revision != d.serving() && !same[i.Revision]
	})
	if d.newest().Stateful() || scale.Capacity(stay) >= wanted {
		d.svc.Rolling = 0
		return r
	}
	if wanted > r.Least {
		r.Least, r.Why = wanted, fmt.Sprintf("%d before the rollout", wanted)
	}
	return r
}

// roll takes the next steps of a rollout.
func (d *Draft) roll() {
	r := d.bounds()
	if d.svc.Rolling == 0 {
		d.svc.Rolling = max(1, d.count().Capacity)
	}
	d.svc.Rolling = min(max(d.svc.Rolling, r.Least), r.Most)
	stage, home := d.survey(), d.home()
	for !d.full() {
		if at := d.home(); at != home { // the first start has moved the service
			stage, home = d.survey(), at
		}
		d.svc = shared(d.svc, stage.Share())
		if left, limited := stage.Deadline(); limited {
			d.lookAgain(d.now.Add(max(0, left)))
		}
		m := stage.Next()
		switch {
		case m.Pass:
			d.record(pando.DecidedRollout, "", m.Reason, nil)
			d.svc = soaked(d.svc)
			stage = d.survey()
		case m.Abort:
			d.rollBack(m.Reason)
			return
		case m.Finish:
			d.finishRollout(m.Reason)
			return
		case m.Start && d.mayStart(m.Revision(d.svc), 1):
			if !d.start(m.Revision(d.svc), m.Reason) {
				return // no host has room
			}
			stage.Started(m)
		case m.Drain != "" && len(d.inOrder([]lifecycle.Move{{Drain: m.Drain}})) == 0:
			return // the other ordinals serve first
		case m.Drain != "" && !d.fresh(m.Drain):
			d.record(pando.DecidedRollout, m.Drain, m.Reason, nil)
			d.drain(m.Drain, m.Reason)
			stage.Drained()
		default:
			d.lookAgain(m.Wait)
			return
		}
	}
}

// survey returns the stage of the rollout.
func (d *Draft) survey() *lifecycle.Stage {
	spec := d.newest()
	if d.stopFirst() {
		spec.Rollout.Order = pando.StopFirst
	}
	trial := d.localTrial()
	return lifecycle.Survey(lifecycle.Takeover{
		Paused: trial.Paused != nil, Age: trial.Age(d.now), Soaked: trial.Soaked,
		Compared: trial.Compared,
		Alike:    d.alike(d.svc.Target), Ordered: d.newest().Stateful(),
		Current: d.svc.Current, Target: d.svc.Target, Wanted: d.svc.Rolling, Rule: spec.Rollout,
		Restart: spec.Restart, Failures: d.history().failures, Instances: d.locals(d.reachable()),
	}, d.now)
}

func (d *Draft) finishRollout(reason string) {
	d.putRevision(d.svc.Current, pando.RevisionRetired, reason)
	d.putRevision(d.svc.Target, pando.RevisionCurrent, reason)
	d.svc.Current, d.svc.Rolling, d.svc.Trial = d.svc.Target, 0, nil
	reason = fmt.Sprintf("revision %d is current: %s", d.svc.Current, reason)
	d.record(pando.DecidedRollout, "", reason, nil)
}

// rollBack makes the current revision the target again. Then hold drains the new instances and
// fills up the old revision.
func (d *Draft) rollBack(reason string) {
	failed := d.svc.Target
	d.putRevision(failed, pando.RevisionFailed, reason)
	d.record(pando.DecidedRollback, "", fmt.Sprintf("back to revision %d: %s", d.svc.Current, reason),
		map[string]float64{"from": float64(failed), "to": float64(d.svc.Current)},
		lifecycle.LastWords(d.decisions, d.history().failures, failed)...)
	d.svc.Target, d.svc.Trial = d.svc.Current, nil // Rolling stays: see pando.Service
	if spec, ok := d.spec(d.svc.Current); ok {
		d.hold(spec)
	}
}

// ApartLook is the time between two looks for a host that another service has left.
const ApartLook = 5 * time.Second

// judge sets the phase of the service from the phases of its instances.
func (d *Draft) judge() {
	if d.forgotten || d.newest().IsJob() && !d.svc.Removing {
		return
	}
	c := lifecycle.Case{
		Removing: d.svc.Removing, Left: len(d.crew.all) + len(d.parts),
		Serving: d.count().InRotation + d.servingElsewhere(),
		Least:   d.bounds().Least, Current: d.svc.Current, Target: d.svc.Target, Reason: d.svc.Reason,
		After: d.after,
	}
	if c.Serving < c.Least && len(d.w.Hosts) > 0 {
		c.Waits = cmp.Or(d.unlent(), d.hostless(), d.overdrawn())
		if why, blocked := d.ordinalsWait(); blocked {
			c.Waits = cmp.Or(c.Waits, why)
		}
	}
	c.Waits = cmp.Or(c.Waits, d.roomless)
	if c.Needs = d.unmet(); c.Needs != "" || d.unlent() != "" {
		d.lookAgain(d.now.Add(lifecycle.NeedsLook(d.now.Sub(d.localTime(d.svc.Asked)))))
	}
	c.Done = d.done(c.Least)
	if c.Serving < c.Least && !c.Done {
		c.Failing = d.failing(c.Least)
	}
	if c.Waits != "" && (d.newest().Place.Apart != "" || d.lacking(d.nextSpec()) != nil) {
		d.lookAgain(d.now.Add(ApartLook)) // the other service may leave a host, or one may get it
	}
	j := lifecycle.Judge(c)
	if j.Note != "" && !d.quotaNoted {
		d.record(pando.DecidedHostLost, "", j.Note, nil)
	}
	if j.First {
		d.svc.Current = d.svc.Target
		d.putRevision(d.svc.Target, pando.RevisionCurrent, "the first to serve")
	}
	d.svc.Phase, d.svc.Reason = j.Phase, j.Reason
	if why := d.failingReplacement(); why != "" && j.Phase == pando.ServiceServing {
		d.svc.Reason += "; " + why
	}
}

// These constants bound the history of a service.
const (
	IntentsKept   = 300
	DecisionsKept = 300
	RevisionsKept = 20 // and all that are in use
	trimStep      = 40 // at a time, to keep transactions small
)

// fold lets equal failures share a record.
func (d *Draft) fold(trimmed []pando.Key) {
	put, gone := lifecycle.Folded(d.decisions, d.newest().Restart, trimStep)
	if slices.ContainsFunc(put, func(v pando.Decision) bool {
		return slices.Contains(trimmed, v.Key())
	}) || slices.ContainsFunc(gone, func(k pando.Key) bool { return slices.Contains(trimmed, k) }) {
		return // after the trim
	}
	for _, v := range put {
		d.puts[v.Key()] = v
		d.conds[v.Key()] = d.w.Decisions[v.ID].If()
	}
	d.deletes = append(d.deletes, gone...)
}

// trim deletes old records of the service's history.
func (d *Draft) trim() {
	if d.forgotten {
		return
	}
	bytes := lifecycle.HistoryBytes(len(d.w.Services))
	keep := lifecycle.Fits(d.intents, lifecycle.IntentBytes, bytes, IntentsKept)
	living := func(id pando.InstanceID) bool { return d.crew.has(id) || d.parts[id].ID != "" }
	old := lifecycle.OldIntents(d.intents, keep, trimStep, living)
	keep = lifecycle.Fits(d.decisions, lifecycle.DecisionBytes, bytes, DecisionsKept)
	if len(d.decisions) > keep {
		spec := d.newest()
		kept := lifecycle.Remembered(d.decisions, spec.Restart, spec.Scale.Max)
		lifecycle.RememberedRuns(kept, d.decisions, d.svc.Book)
		old = append(old, lifecycle.OldDecisions(d.decisions, kept, keep, trimStep)...)
	}
	d.deletes = append(d.deletes, old...)
	d.fold(old)
	all := d.w.Revisions[d.svc.ServiceKey]
	if len(all) <= RevisionsKept {
		return
	}
	used := func(n int) bool {
		_, written := d.puts[all[n].V.Key()]
		return written || n == d.svc.Current || n == d.svc.Target || d.crew.revisions[n] > 0 ||
			d.svc.Book.Uses(n)
	}
	numbers := slices.Sorted(maps.Keys(all))
	for _, n := range lifecycle.OldRevisions(numbers, used, RevisionsKept, trimStep) {
		d.deletes = append(d.deletes, all[n].V.Key())
	}
}
