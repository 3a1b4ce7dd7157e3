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

// address gives a new service its VIPs: the lowest that no service has. Only the leader does this, so two services never
// get the same.
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
			return // the pin's record says what is still to leave
		}
		d.svc.Pin = nil
		d.decide(pando.DecidedUnpin, self, "", fmt.Sprintf("the pin of %d by %s ended", p.Instances, p.By), nil)
	}
}

// letGo takes back what a pin added: nobody else would, unless a metric says when an instance has to leave.
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

// remove drains whatever is left, and forgets the service when nothing is.
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

// forget deletes the records of a service without instances, the oldest of its history first. The service's own record goes in
// the last part: until then a deploy is refused, and a control that begins anew goes on here.
func (d *draft) forget() {
	k := d.svc.ServiceKey
	clear(d.puts) // what would be said of it goes with it
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

// evacuate takes out what is on a host that leaves.
func (d *draft) evacuate() {
	for _, i := range slices.Clone(d.instances) {
		if d.w.Hosts[i.Host].V.Leaving && i.Phase.May(pando.PhaseDraining) && !d.full() {
			d.drain(i, fmt.Sprintf("its host %s leaves", i.Host))
		}
	}
}

// hold keeps a service that is not rolling out within its bounds, and its reserve filled.
func (d *draft) hold(spec pando.Spec) {
	least, most, why := scale.Bounds(spec.Scale, d.svc.Pin, d.now)
	if d.svc.Pin == nil {
		least = max(0, least-lifecycle.Ended(d.decisions, spec.Restart))
	}
	n := scale.Capacity(d.reachable())
	switch {
	case n < least && d.mayStart():
		for ; n < least && !d.full(); n++ {
			d.start(d.serving(), fmt.Sprintf("%d of %d instances (%s)", n, least, why))
		}
	case n > most:
		d.shed(n-most, why)
	}
	d.keepWarm(spec.Scale.Warm, d.serving())
	d.drainStrangers()
	d.bringHome(least)
}

// mayStart holds starts back after failures.
func (d *draft) mayStart() bool {
	notBefore, failures := lifecycle.BackOff(d.decisions, d.now)
	if !d.now.Before(notBefore) {
		return d.waits() == ""
	}
	d.lookAgain(notBefore)
	if !d.saidBackOff(failures) {
		d.decide(pando.DecidedBackOff, self, "", fmt.Sprintf("%d failures in the last minute: the next start is in %s",
			failures, notBefore.Sub(d.now).Round(time.Millisecond)), map[string]float64{"failures": float64(failures)})
	}
	return false
}

func (d *draft) saidBackOff(failures int) bool {
	return slices.ContainsFunc(d.decisions, func(v pando.Decision) bool {
		return v.Kind == pando.DecidedBackOff && v.Inputs["failures"] == float64(failures) && d.now.Sub(v.At) < lifecycle.BackOffMemory
	})
}

// start asks and grants in one step: control needs nobody's leave to hold a bound.
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

// reserve are the phases in which a warm instance is one or soon will be.
var reserve = []pando.Phase{pando.PhasePlaced, pando.PhaseStarting, pando.PhaseWarm}

// keepWarm keeps a reserve of stopped, fully started instances of one revision, and lets the others go.
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
	if n >= wanted || !d.mayStart() {
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

// drainStrangers takes out what a rollback or an upgrade of bounds left behind: instances of a revision that neither
// serves nor rolls.
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
	least, most, _ := scale.Bounds(spec.Scale, d.svc.Pin, d.now)
	if d.svc.Rolling == 0 {
		d.svc.Rolling = max(1, scale.Capacity(d.reachable()))
	}
	d.svc.Rolling = min(max(d.svc.Rolling, least), most)
	for !d.full() {
		m := lifecycle.Rollout(d.svc.Current, d.svc.Target, d.svc.Rolling, spec.Rollout, d.reachable(), d.now)
		switch {
		case m.Abort:
			d.rollBack(m.Reason)
			return
		case m.Finish:
			d.finishRollout(m.Reason)
			return
		case m.Start && d.waits() == "":
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

// rollBack makes the current revision the target again; hold then takes the new instances out and fills up the old.
func (d *draft) rollBack(reason string) {
	d.setRevision(d.svc.Target, pando.RevisionFailed, reason)
	d.decide(pando.DecidedRollback, self, "", fmt.Sprintf("back to revision %d: %s", d.svc.Current, reason),
		map[string]float64{"from": float64(d.svc.Target), "to": float64(d.svc.Current)}, d.lastWords(d.svc.Target)...)
	d.svc.Target, d.svc.Rolling = d.svc.Current, 0
	if spec, ok := d.spec(d.svc.Current); ok {
		d.hold(spec)
	}
}

// lastWords are the last log lines of the newest failure of a revision.
func (d *draft) lastWords(revision int) []string {
	failed := map[pando.InstanceID]bool{}
	for _, i := range d.instances {
		failed[i.ID] = i.Revision == revision && i.Phase == pando.PhaseFailed
	}
	for _, v := range slices.Backward(d.decisions) {
		if v.Kind == pando.DecidedFailed && failed[v.Instance] {
			return v.Lines
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

// judge sets the phase of the service from what its instances do.
func (d *draft) judge() {
	if d.forgotten {
		return
	}
	serving := scale.Serving(d.reachable())
	spec := d.newest()
	least, _, _ := scale.Bounds(spec.Scale, d.svc.Pin, d.now)
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

// How much history a service keeps.
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
	for _, v := range d.decisions[:min(trimStep, max(0, len(d.decisions)-DecisionsKept))] {
		d.deletes = append(d.deletes, v.Key())
	}
	d.trimRevisions()
}

// trimRevisions forgets the oldest specs that nothing runs by. Who deploys 500 times would else have 500 of them in every agent.
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

// over says whether an intent can be forgotten: it ended, or its instance is in rotation, or gone.
func (d *draft) over(i pando.Intent) bool {
	if i.State.Ended() {
		return true
	}
	return i.State != pando.IntentAsked && !slices.ContainsFunc(d.instances, func(o pando.Instance) bool { return o.ID == i.Instance })
}
