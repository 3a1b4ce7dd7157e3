package control

import (
	"context"
	"fmt"
	"slices"
	"time"

	"pando.run/pando"
	"pando.run/pando/lifecycle"
)

// Restart implements pando.Operators. The mark in the service's record names the instances that
// leave, so that a new leader continues.
func (c *operators) Restart(
	ctx context.Context, s pando.ServiceKey, ask pando.RestartAsk, by pando.Asker,
) (pando.ServiceStatus, error) {
	err := c.edit(ctx, s, by, func(svc *pando.Service, _ time.Time) (*pando.Decision, error) {
		if ask.Cancel {
			if svc.Renew == nil {
				return nil, nil
			}
			svc.Renew = nil
			return &pando.Decision{Kind: pando.DecidedRestart, By: by,
				Reason: "an operator ends the restart; the instances that are left stay"}, nil
		}
		return c.beginRestart(svc, ask.Instance, by)
	})
	if err != nil {
		return pando.ServiceStatus{}, err
	}
	return c.Service(ctx, s)
}

// beginRestart marks the instances of a service that leave. The caller holds the lock.
func (c *operators) beginRestart(
	svc *pando.Service, only pando.InstanceID, by pando.Asker,
) (*pando.Decision, error) {
	s := svc.ServiceKey
	spec, _ := c.world.SpecOf(s, svc.Target)
	next := pando.Renewal{}
	var due []pando.InstanceID
	for _, i := range c.world.Of(s) {
		next.Before = max(next.Before, c.world.CreatedOf(i.Key()))
		if (i.Warm || i.Capacity()) && (only == "" || i.ID == only) {
			due = append(due, i.ID)
		}
	}
	switch {
	case svc.Removing:
		return nil, fmt.Errorf("%w: %s is being removed", pando.ErrRefused, s)
	case spec.IsJob():
		return nil, fmt.Errorf("%w: %s is a job, whose instances end by themselves; `pando run %[2]s` "+
			"runs it again", pando.ErrRefused, s)
	case svc.Current != svc.Target && svc.Current != 0:
		return nil, fmt.Errorf("%w: a rollout of %s replaces its instances already; `pando rollout "+
			"status %[2]s` shows it", pando.ErrRefused, s)
	case only != "" && svc.Renew != nil && len(svc.Renew.Only) == 0:
		return nil, nil // the restart in progress has the instance too
	case len(due) == 0 && only != "":
		return nil, fmt.Errorf("instance %s of %s: %w, or it leaves already; `pando ps` lists the "+
			"instances", only, s, pando.ErrNotFound)
	case len(due) == 0:
		return nil, fmt.Errorf("%w: %s has no instance to restart", pando.ErrRefused, s)
	}
	reason := fmt.Sprintf("an operator restarts its %d instances", len(due))
	if only != "" {
		reason = fmt.Sprintf("an operator restarts %s", only)
		if svc.Renew != nil {
			next.Only = slices.Clone(svc.Renew.Only)
		}
		if !slices.Contains(next.Only, only) {
			next.Only = append(next.Only, only)
		}
		if len(next.Only) > pando.RenewalMax {
			return nil, fmt.Errorf("%w: %d instances of %s restart already; `pando restart %[3]s` restarts "+
				"all", pando.ErrRefused, pando.RenewalMax, s)
		}
	}
	svc.Renew = &next
	return &pando.Decision{Kind: pando.DecidedRestart, Instance: only, By: by, Reason: reason}, nil
}

// due returns the instances that a restart has still to replace.
func (d *draft) due() (out []pando.Instance) {
	for _, i := range d.crew.all {
		if d.restarts(i) {
			out = append(out, i)
		}
	}
	return out
}

// renew takes the next steps of a restart. A service that starts first gets a new instance beside
// the old one, which drains once the new one is healthy (relieve). A service that stops first loses
// one instance at a time, and restored brings the number back. An instance that serves nobody leaves
// at once.
func (d *draft) renew() {
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
			d.takeForRestart(i, "an operator restarts it, and it serves nobody")
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
func (d *draft) takeForRestart(i pando.Instance, reason string) {
	if !d.newest().Stateful() && !i.Warm {
		d.svc.Rolling = max(d.svc.Rolling, d.count().Capacity)
	}
	d.drain(i.ID, reason)
}

// steady reports whether as many instances as there have to be are in rotation, and no other one is
// on its way or ends. A change of an instance or of the service leads to another look.
func (d *draft) steady() bool {
	return d.count().Capacity >= max(d.bounds().Least, d.svc.Rolling) &&
		!slices.ContainsFunc(d.crew.all, func(i pando.Instance) bool {
			return i.Capacity() && i.Phase != pando.PhaseInRotation
		})
}

// renewStopFirst ends one instance, and notes the number to come back to.
func (d *draft) renewStopFirst(due []pando.Instance, why string) {
	ends := slices.ContainsFunc(d.crew.all, func(i pando.Instance) bool { return !i.Warm && !i.Capacity() })
	if ends || len(due) == 0 || !d.steady() || d.full() {
		return // its change leads here again
	}
	d.takeForRestart(due[0], why)
}

// renewStartFirst starts instances in place of others, within the surge.
func (d *draft) renewStartFirst(due []pando.Instance, why string) {
	replaced := map[pando.InstanceID]bool{}
	for _, i := range d.reachable() {
		if i.Replaces != "" && i.Capacity() {
			replaced[i.Replaces] = true
		}
	}
	spec, known := d.spec(d.serving())
	room := max(1, spec.Rollout.Surge) - swapping(d.reachable())
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

// replacementFails begins the part of a service's reason about a replacement that fails.
const replacementFails = "its replacement fails"

// failingReplacement returns how the instance fails that is to take the place of another one, again
// and again, with the way out, or "". The other one serves meanwhile, so the service does too.
func (d *draft) failingReplacement() string {
	if d.svc.Renew == nil && len(d.w.Drained) == 0 || d.svc.Removing {
		return ""
	}
	for _, i := range d.crew.all {
		if !i.Phase.TakesFlows() || i.Warm {
			continue
		}
		what, end := "", ""
		switch {
		case d.restarts(i):
			what, end = "the restart of "+string(i.ID)+" waits", fmt.Sprintf(
				"`pando restart %s --cancel` ends the restart", d.svc.ServiceKey)
		case drained(d.w, i.Host):
			what = fmt.Sprintf("%s stays on %s, which is drained", i.ID, i.Host)
			end = fmt.Sprintf("`pando hosts undrain %s` ends the drain", i.Host)
		default:
			continue
		}
		past := d.history()
		w := lifecycle.BackOff(past.failures, d.serving(), 1, past.healed, past.started, d.now)
		if w.Failures < failuresNamed {
			return ""
		}
		return fmt.Sprintf("%s: %s, %d times so far, the last because %s; `pando logs %s` has its output, "+
			"and %s", what, replacementFails, w.Failures, w.Last, d.svc.ServiceKey, end)
	}
	return ""
}

// failuresNamed is the number of failures of a replacement from which they are shown.
const failuresNamed = 2

// restarts reports whether a restart has still to replace an instance.
func (d *draft) restarts(i pando.Instance) bool {
	r := d.svc.Renew
	if r == nil {
		return false
	}
	created := d.w.CreatedOf(i.Key())
	return created != 0 && created <= r.Before && (i.Warm || i.Capacity()) &&
		(len(r.Only) == 0 || slices.Contains(r.Only, i.ID))
}
