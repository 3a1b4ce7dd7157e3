package control

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"pando.run/pando"
	"pando.run/pando/lifecycle"
	"pando.run/pando/scale"
)

// address gives a new service its VIPs: the lowest pair that no service has. Only the leader
// assigns VIPs, so two services never get the same.
func (d *draft) address() {
	if d.svc.VIP4.IsValid() {
		return
	}
	taken := map[netip.Addr]bool{pando.Gateway4: true}
	for _, s := range d.w.Services {
		taken[s.V.VIP4] = true
	}
	first := binary.BigEndian.Uint32(pando.VIPs4.Addr().AsSlice())
	for n := uint32(1); n < 1<<16-1; n++ {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], first+n)
		v4 := netip.AddrFrom4(b)
		if taken[v4] {
			continue
		}
		six := pando.VIPs6.Addr().As16()
		binary.BigEndian.PutUint32(six[12:], n)
		d.svc.VIP4, d.svc.VIP6 = v4, netip.AddrFrom16(six)
		return
	}
}

func (d *draft) liftPin() {
	p := d.svc.Pin
	switch {
	case p == nil:
	case p.Holds(d.now):
		d.lookAgain(p.Until)
	default:
		if d.letGo(*p); d.full() {
			return // more instances have to drain: the pin's record stays until then
		}
		d.svc.Pin = nil
		d.decide(pando.DecidedUnpin, self, "", fmt.Sprintf("the pin of %d by %s ended", p.Instances, p.By), nil)
	}
}

// letGo drains the instances that a pin added. A service that scales by a metric drains them
// itself.
func (d *draft) letGo(p pando.Pin) {
	spec := d.newest()
	if spec.Scale.By != pando.ByNothing || d.svc.Removing {
		return
	}
	stay := max(p.Before, spec.Scale.Min)
	if d.svc.Rolling > 0 {
		d.svc.Rolling = min(d.svc.Rolling, stay)
		return
	}
	d.shed(scale.Capacity(d.reachable())-stay, fmt.Sprintf("%d before the pin", p.Before))
}

// remove drains all instances of the service. It deletes the service's records when no instance is
// left.
func (d *draft) remove() {
	d.forgetLost()
	if len(d.instances) == 0 {
		d.forget()
		return
	}
	for _, i := range d.instances {
		if i.Phase.May(pando.PhaseDraining) && !d.full() {
			d.drain(i, "the service is being removed")
		}
	}
}

// forget deletes the records of a service without instances, the oldest of its history first. The
// service's own record is deleted last. Until then a deploy is refused, and a new leader continues
// here.
func (d *draft) forget() {
	k := d.svc.ServiceKey
	clear(d.puts) // drops pending writes to records that are deleted now
	d.forgotten = true
	history := make([]pando.Key, 0, len(d.intents)+len(d.decisions))
	for _, i := range d.intents {
		history = append(history, i.Key())
	}
	for _, v := range d.decisions {
		history = append(history, v.Key())
	}
	for _, n := range slices.Sorted(maps.Keys(d.w.Revisions[k])) {
		history = append(history, d.w.Revisions[k][n].V.Key())
	}
	for _, one := range history {
		if d.full() {
			return
		}
		d.deletes = append(d.deletes, one)
	}
	d.deletes = append(d.deletes, d.svc.Key())
	d.conds[d.svc.Key()] = d.before.If()
	if head, ok := d.w.Heads[k]; ok && d.svc.Purge {
		d.deletes = append(d.deletes, head.V.Key())
	}
}

// evacuate drains the instances on a leaving host.
func (d *draft) evacuate() {
	for _, i := range slices.Clone(d.instances) {
		if d.w.Hosts[i.Host].V.Leaving && i.Phase.May(pando.PhaseDraining) && !d.full() {
			d.drain(i, fmt.Sprintf("its host %s leaves", i.Host))
		}
	}
}

// bounds returns the least and the most instances that there have to be now. A pin does not exceed
// the one instance of a single writer.
func (d *draft) bounds(spec pando.Spec) (least, most int, why string) {
	least, most, why = scale.Bounds(spec.Scale, d.svc.Pin, d.now)
	if spec.Single() && most > 1 {
		least, most, why = min(least, 1), 1, "scale.max 1, rollout.order stop-first"
	}
	return least, most, why
}

// room returns how many more instances may start. Only stop-first bounds it: a draining instance
// still runs and counts against the maximum.
func (d *draft) room(most int) int {
	if !d.stopFirst() {
		return most
	}
	for _, i := range d.reachable() {
		if !i.Warm {
			most--
		}
	}
	return most
}

// stopFirst reports whether the newest spec, or the spec of a running instance, has the order
// stop-first.
func (d *draft) stopFirst() bool {
	if d.newest().Rollout.Order == pando.StopFirst {
		return true
	}
	return slices.ContainsFunc(d.instances, func(i pando.Instance) bool {
		s, _ := d.spec(i.Revision)
		return s.Rollout.Order == pando.StopFirst
	})
}

// hold keeps a service outside a rollout within its bounds, and its reserve filled.
func (d *draft) hold(spec pando.Spec) {
	least, most, why := d.bounds(spec)
	if d.svc.Pin == nil {
		least = max(0, least-lifecycle.Ended(d.decisions, spec.Restart))
	}
	n := scale.Capacity(d.reachable())
	switch {
	case n < least && d.mayStart(d.serving(), least):
		for room := d.room(most); n < least && room > 0 && !d.full(); n, room = n+1, room-1 {
			d.start(d.serving(), fmt.Sprintf("%d of %d instances (%s)", n, least, why))
		}
	case n > most:
		d.shed(n-most, why)
	}
	d.keepWarm(spec.Scale.Warm, d.serving())
	d.drainStrangers()
	d.bringHome(least)
}

// mayStart reports whether an instance of a revision may start now. It applies the back-off after
// failures. wanted is the number of instances that there have to be.
func (d *draft) mayStart(revision, wanted int) bool {
	w := lifecycle.BackOff(d.failures(), revision, wanted, d.started(), d.now)
	if w.Until.IsZero() {
		return d.waits() == ""
	}
	d.lookAgain(w.Until)
	if !d.saidBackOff(w.For) {
		reason := fmt.Sprintf("%d failures in the last minute, %d instances wanted: starts are %s apart",
			w.Failures, wanted, w.For)
		d.decide(pando.DecidedBackOff, self, "", reason,
			map[string]float64{"failures": float64(w.Failures), "wait_seconds": w.For.Seconds()})
	}
	return false
}

func (d *draft) saidBackOff(wait time.Duration) bool {
	return slices.ContainsFunc(d.decisions, func(v pando.Decision) bool {
		return v.Kind == pando.DecidedBackOff && v.Inputs["wait_seconds"] == wait.Seconds() &&
			d.now.Sub(v.At) < lifecycle.BackOffMemory
	})
}

// failures returns the failures of the service since its last deploy. The revision of an instance
// that is gone comes from the intent that placed it.
func (d *draft) failures() []lifecycle.Failure {
	revisions := map[pando.InstanceID]int{}
	for _, i := range d.intents {
		if n, ok := i.Inputs[lifecycle.Revision]; ok {
			revisions[i.Instance] = int(n)
		}
	}
	for _, i := range d.instances {
		revisions[i.ID] = i.Revision
	}
	return lifecycle.Failures(d.decisions, func(i pando.InstanceID) int { return revisions[i] })
}

// started returns when control itself last placed an instance, or zero if that is unknown.
func (d *draft) started() time.Time {
	for _, i := range slices.Backward(d.intents) {
		if i.Verb != pando.VerbReplicate || i.By.Kind != pando.AskerControl {
			continue
		}
		for _, step := range i.History {
			if step.State == pando.IntentPlaced {
				return step.At
			}
		}
	}
	return time.Time{}
}

// start asks and grants in one step, because control needs no permission to hold a bound.
func (d *draft) start(revision int, reason string) {
	if d.waits() != "" {
		return
	}
	d.place(d.ask(pando.VerbReplicate, reason), revision)
}

func (d *draft) shed(n int, why string) {
	left := slices.Clone(d.reachable())
	for ; n > 0 && !d.full(); n-- {
		i, ok := scale.Youngest(left)
		if !ok {
			return
		}
		left = slices.DeleteFunc(left, func(o pando.Instance) bool { return o.ID == i.ID })
		d.drain(i, fmt.Sprintf("more than wanted (%s)", why))
	}
}

// reserve lists the phases of a warm instance in reserve or on its way there.
var reserve = []pando.Phase{pando.PhasePlaced, pando.PhaseStarting, pando.PhaseWarm}

// keepWarm keeps a reserve of paused, fully started instances of one revision and drains the
// others.
func (d *draft) keepWarm(wanted, revision int) {
	n := 0
	for _, i := range slices.Clone(d.reachable()) {
		if !i.Warm || !slices.Contains(reserve, i.Phase) {
			continue
		}
		if n++; n > wanted || i.Revision != revision {
			n--
			if i.Phase.May(pando.PhaseDraining) && !d.full() {
				d.drain(i, fmt.Sprintf("a reserve of %d of revision %d is wanted", wanted, revision))
			}
		}
	}
	if n >= wanted || !d.mayStart(revision, scale.Capacity(d.reachable())+wanted) {
		return
	}
	for ; n < wanted && !d.full(); n++ {
		intent := d.ask(pando.VerbReplicate, fmt.Sprintf("reserve %d of %d", n+1, wanted))
		if i, ok := d.placeNew(&intent, revision); ok {
			i.Warm, i.Role = true, pando.RoleReplica
			d.putInstance(i)
		}
	}
}

// drainStrangers drains instances of a revision that neither serves nor rolls. A rollback or a
// change of bounds leaves such instances behind.
func (d *draft) drainStrangers() {
	for _, i := range slices.Clone(d.reachable()) {
		if i.Revision != d.serving() && i.Capacity() && i.Phase.May(pando.PhaseDraining) && d.svc.Current != 0 && !d.full() {
			d.drain(i, fmt.Sprintf("revision %d is not wanted", i.Revision))
		}
	}
}

// roll takes the next steps of a rollout.
func (d *draft) roll(pando.Spec) {
	spec := d.newest()
	least, most, _ := d.bounds(spec)
	if d.svc.Rolling == 0 {
		d.svc.Rolling = max(1, scale.Capacity(d.reachable()))
	}
	d.svc.Rolling = min(max(d.svc.Rolling, least), most)
	if d.stopFirst() {
		spec.Rollout.Order = pando.StopFirst
	}
	failures := d.failures()
	for !d.full() {
		m := lifecycle.Rollout(lifecycle.Takeover{
			Current: d.svc.Current, Target: d.svc.Target, Wanted: d.svc.Rolling,
			Rule: spec.Rollout, Restart: spec.Restart, Failures: failures, Instances: d.reachable(),
		}, d.now)
		switch {
		case m.Abort:
			d.rollBack(m.Reason)
			return
		case m.Finish:
			d.finishRollout(m.Reason)
			return
		case m.Start && d.mayStart(d.svc.Target, 1):
			d.start(d.svc.Target, m.Reason)
		case m.Drain != nil && !d.fresh(*m.Drain):
			d.decide(pando.DecidedRollout, self, m.Drain.ID, m.Reason, nil)
			d.drain(*m.Drain, m.Reason)
		default:
			d.lookAgain(m.Wait)
			return
		}
	}
}

func (d *draft) finishRollout(reason string) {
	d.setRevision(d.svc.Current, pando.RevisionRetired, reason)
	d.setRevision(d.svc.Target, pando.RevisionCurrent, reason)
	d.svc.Current, d.svc.Rolling = d.svc.Target, 0
	d.decide(pando.DecidedRollout, self, "", fmt.Sprintf("revision %d is current: %s", d.svc.Current, reason), nil)
}

// rollBack makes the current revision the target again. Then hold drains the new instances and
// fills up the old revision.
func (d *draft) rollBack(reason string) {
	d.setRevision(d.svc.Target, pando.RevisionFailed, reason)
	d.decide(pando.DecidedRollback, self, "", fmt.Sprintf("back to revision %d: %s", d.svc.Current, reason),
		map[string]float64{"from": float64(d.svc.Target), "to": float64(d.svc.Current)}, d.lastWords(d.svc.Target)...)
	d.svc.Target, d.svc.Rolling = d.svc.Current, 0
	if spec, ok := d.spec(d.svc.Current); ok {
		d.hold(spec)
	}
}

// lastWords returns the last log lines of the newest failure of a revision.
func (d *draft) lastWords(revision int) []string {
	failures := d.failures()
	for n, v := range slices.Backward(d.decisions) {
		if v.Kind != pando.DecidedFailed || len(failures) == 0 {
			continue
		}
		newest := failures[len(failures)-1]
		failures = failures[:len(failures)-1]
		if newest.Revision == revision {
			return d.decisions[n].Lines
		}
	}
	return nil
}

func (d *draft) setRevision(n int, s pando.RevisionState, reason string) {
	r, ok := d.w.Revisions[d.svc.ServiceKey][n]
	if !ok {
		return
	}
	d.conds[r.V.Key()] = r.If()
	r.V.State, r.V.Reason = s, reason
	d.puts[r.V.Key()] = r.V
}

// judge sets the phase of the service from the phases of its instances.
func (d *draft) judge() {
	if d.forgotten {
		return
	}
	serving := scale.Serving(d.reachable())
	spec := d.newest()
	least, _, _ := d.bounds(spec)
	set := func(p pando.ServicePhase, format string, args ...any) {
		d.svc.Phase, d.svc.Reason = p, fmt.Sprintf(format, args...)
	}
	switch {
	case d.svc.Removing:
		set(pando.ServiceRemoving, "%d instances are left", len(d.instances))
	case serving < least && len(d.w.Hosts) > 0 && d.waits() != "":
		d.sayWaits(d.waits())
		set(pando.ServiceDegraded, "%d of %d instances in rotation: %s", serving, least, d.waits())
	case d.svc.Current == 0 && serving < least:
		set(pando.ServiceDeploying, "%d of %d instances in rotation", serving, least)
	case d.svc.Current == 0:
		d.svc.Current = d.svc.Target
		d.setRevision(d.svc.Target, pando.RevisionCurrent, "the first to serve")
		set(pando.ServiceServing, "%d in rotation", serving)
	case d.svc.Target != d.svc.Current:
		set(pando.ServiceRolling, "revision %d takes over from %d", d.svc.Target, d.svc.Current)
	case serving < least:
		set(pando.ServiceDegraded, "%d of %d instances in rotation", serving, least)
	default:
		set(pando.ServiceServing, "%d in rotation", serving)
	}
}

// These constants bound the history of a service.
const (
	IntentsKept   = 300
	DecisionsKept = 300
	RevisionsKept = 20 // and all that are in use
	trimStep      = 40 // at a time, to keep transactions small
)

func (d *draft) trim() {
	if d.forgotten {
		return
	}
	n := 0
	for _, i := range d.intents[:max(0, len(d.intents)-IntentsKept)] {
		if n < trimStep && d.over(i) {
			d.deletes = append(d.deletes, i.Key())
			n++
		}
	}
	d.trimDecisions()
	d.trimRevisions()
}

// trimDecisions deletes the oldest decisions, except those that later decisions depend on.
func (d *draft) trimDecisions() {
	left := len(d.decisions) - DecisionsKept
	if left <= 0 {
		return
	}
	spec := d.newest()
	kept := lifecycle.Remembered(d.decisions, spec.Restart, spec.Scale.Max)
	left, n := left-len(kept), 0
	for _, v := range d.decisions {
		if n >= min(left, trimStep) {
			return
		}
		if !kept[v.ID] {
			d.deletes = append(d.deletes, v.Key())
			n++
		}
	}
}

// trimRevisions deletes the oldest specs that no instance uses, because every agent keeps all
// stored revisions in memory.
func (d *draft) trimRevisions() {
	all := d.w.Revisions[d.svc.ServiceKey]
	if len(all) <= RevisionsKept {
		return
	}
	used := map[int]bool{d.svc.Current: true, d.svc.Target: true}
	for _, i := range d.instances {
		used[i.Revision] = true
	}
	n := 0
	for _, number := range slices.Sorted(maps.Keys(all))[:len(all)-RevisionsKept] {
		key := all[number].V.Key()
		if _, written := d.puts[key]; written || used[number] || n == trimStep {
			continue
		}
		d.deletes = append(d.deletes, key)
		n++
	}
}

// over reports whether an intent can be deleted: it has ended, or its instance is gone.
func (d *draft) over(i pando.Intent) bool {
	if i.State.Ended() {
		return true
	}
	return i.State != pando.IntentAsked && !slices.ContainsFunc(d.instances, func(o pando.Instance) bool { return o.ID == i.Instance })
}
