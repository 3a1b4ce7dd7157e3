package decide

import (
	"fmt"
	"slices"

	"pando.run/pando"
	"pando.run/pando/world"
)

// due returns the instances that a restart has still to replace.
func (d *Draft) due() (out []pando.Instance) {
	for _, i := range d.crew.all {
		if IsRestarted(d.w, d.svc, i) {
			out = append(out, i)
		}
	}
	return out
}

// renew takes the next steps of a restart. A service that starts first gets a new instance beside
// the old one, which drains once the new one is healthy (relieve). A service that stops first loses
// one instance at a time, and restored brings the number back. An instance outside of the rotation
// leaves at once.
func (d *Draft) renew() {
	if d.svc.Renew == nil {
		return
	}
	due := d.due()
	if len(due) == 0 {
		if !d.steady() {
			return // the last of them has no successor yet
		}
		d.svc.Renew = nil
		d.record(pando.DecidedRestart, "", "the restart is complete", nil)
		return
	}
	serving := due[:0]
	for _, i := range due {
		switch {
		case i.Phase.TakesFlows() && !i.Warm:
			serving = append(serving, i)
		case i.Phase.May(pando.PhaseDraining) && !d.full():
			d.takeForRestart(i, "an operator restarts it; it is "+string(i.Phase))
		}
	}
	if spec := d.newest(); spec.Stateful() || spec.Ordinals() || d.stopFirst() {
		d.renewStopFirst(serving, "an operator restarts it: it ends before another one starts in its place")
		return
	}
	d.renewStartFirst(serving, "an operator restarts it")
}

// takeForRestart drains an instance, and notes the number to come back to. The ordinals of a
// stateful service come back by themselves.
func (d *Draft) takeForRestart(i pando.Instance, reason string) {
	if !d.newest().Stateful() && !i.Warm {
		d.svc.Rolling = max(d.svc.Rolling, d.count().Capacity)
	}
	d.drain(i.ID, reason)
}

// steady reports whether as many instances as there have to be are in rotation, and no other one is
// on its way or ends. A change of an instance or of the service leads to another look.
func (d *Draft) steady() bool {
	return d.count().Capacity >= max(d.bounds().Least, d.svc.Rolling) &&
		!slices.ContainsFunc(d.crew.all, func(i pando.Instance) bool {
			return i.Capacity() && i.Phase != pando.PhaseInRotation
		})
}

// renewStopFirst ends one instance, and notes the number to come back to.
func (d *Draft) renewStopFirst(due []pando.Instance, why string) {
	ends := slices.ContainsFunc(d.crew.all, func(i pando.Instance) bool { return !i.Warm && !i.Capacity() })
	if ends || len(due) == 0 || !d.steady() || d.full() {
		return // its change leads here again
	}
	d.takeForRestart(due[0], why)
}

// renewStartFirst starts instances in place of others, within the surge.
func (d *Draft) renewStartFirst(due []pando.Instance, why string) {
	replaced := map[pando.InstanceID]bool{}
	for _, i := range d.reachable() {
		if i.Replaces != "" && i.Capacity() {
			replaced[i.Replaces] = true
		}
	}
	spec, known := d.spec(d.serving())
	room := max(1, spec.Rollout.Surge) - Replacing(d.reachable())
	for _, i := range due {
		if replaced[i.ID] {
			continue
		}
		if room--; room < 0 || !known || d.full() || !d.mayStart(d.serving(), d.count().Capacity+1) {
			return
		}
		d.replaces = i.ID
		d.placeNew(d.grant(pando.VerbReplicate,
			fmt.Sprintf("in place of %s: %s", i.ID, why)), d.serving(), d.role(), false)
		d.replaces = ""
	}
}

// relieve drains the instances that others have replaced.
func (d *Draft) relieve() {
	for _, i := range slices.Clone(d.reachable()) {
		if i.Replaces == "" || i.Phase != pando.PhaseInRotation {
			continue
		}
		o, ok := d.crew.get(i.Replaces)
		if !ok || !o.Capacity() || d.full() {
			continue
		}
		why, asked := "the spread becomes even", true
		switch {
		case d.svc.Renew != nil:
			why = "an operator restarts the service"
		case d.mustLeave(o):
			why = d.leaveReason(o)
		default:
			asked = false
		}
		if asked && !d.healthy(i) {
			continue
		}
		d.drain(o.ID, fmt.Sprintf("%s takes its place: %s", i.ID, why))
	}
}

// Replacing returns how many instances are on their way to replace another one, which still counts.
func Replacing(all []pando.Instance) (n int) {
	counts := map[pando.InstanceID]bool{}
	for k := range all {
		counts[all[k].ID] = all[k].Capacity()
	}
	for k := range all {
		if i := &all[k]; i.Replaces != "" && counts[i.ID] && counts[i.Replaces] {
			n++
		}
	}
	return n
}

// IsRestarted reports whether a restart has still to replace an instance.
func IsRestarted(w *world.World, svc pando.Service, i pando.Instance) bool {
	r := svc.Renew
	if r == nil {
		return false
	}
	created := w.CreatedOf(i.Key())
	return created != 0 && created <= r.Before && (i.Warm || i.Capacity()) &&
		(len(r.Only) == 0 || slices.Contains(r.Only, i.ID))
}

// ReplacementFails begins the part of a service's reason about a replacement that fails.
const ReplacementFails = "its replacement fails"
