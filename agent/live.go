package agent

import (
	"context"
	"fmt"
	"time"

	"pando.run/pando"
)

// How instances that do not answer are taken out.
const (
	// waveMax is how long an instance that was taken out counts against the next one if nothing
	// replaces it.
	waveMax = time.Minute
	// unwellDrainMax is how long the flows of such an instance may last: it may hang, and its
	// clients with it.
	unwellDrainMax = time.Minute
)

// wave is a time in which instances of a service are taken out because they do not answer.
type wave struct {
	whole int       // how many took flows when it began
	last  time.Time // when one was taken out
}

// live asks an instance in rotation how it is, if its spec says how. One that does not answer is
// drained and replaced, but never more than a quarter of the service at once and never the last
// one: overload is not death.
func (r *runner) live(ctx context.Context, i pando.Instance, box pando.Sandbox) time.Duration {
	if i.Phase == pando.PhaseReady { // its table was not in force, or a former agent died before it could say more
		r.enter()
	}
	if !r.connected { // a former agent connected it, and this one could not say so again
		return retryWait
	}
	if i.Phase == pando.PhaseWarm {
		return r.doze(ctx, box)
	}
	spec := r.spec(i)
	if spec.Health.Live.Kind == pando.ProbeExplicit {
		return 0
	}
	now := r.a.Clock.Now()
	every := pando.Seconds(spec.Health.IntervalSeconds)
	if since := now.Sub(r.probed); since < every {
		return every - since
	}
	r.probed = now
	err := r.probe(ctx, spec.Health.Live, spec, box)
	if err == nil {
		r.falls, r.spared = 0, false
		return every
	}
	if r.falls++; r.falls < spec.Health.Fall {
		return every
	}
	r.falls = 0
	reason := fmt.Sprintf("%d live probes failed: %v", spec.Health.Fall, err)
	if spared := r.takeOut(reason); spared != "" {
		if !r.spared { // once, until it answers again
			r.spared = true
			r.decide(ctx, pando.DecidedUnhealthy, reason+"; it stays, for "+spared, nil)
		}
		return every
	}
	return atOnce
}

// takeOut drains an instance that does not answer, or says why it stays. Such an end is no failure:
// no replacement waits for it.
func (r *runner) takeOut(reason string) (spared string) {
	d := r.decision(pando.DecidedUnhealthy, reason+"; it is drained and replaced", nil)
	r.a.mu.Lock()
	defer r.a.mu.Unlock()
	if !r.inst.Phase.May(pando.PhaseDraining) {
		return ""
	}
	if spared := r.a.spares(r.service); spared != "" {
		return spared
	}
	if svc := r.a.world.Services[r.service].V; svc.Target != svc.Current && r.inst.Revision == svc.Target {
		d.Kind, d.Reason = pando.DecidedFailed, oneLine(reason, evidenceBytesMax) // a new revision on trial: its rollout ends
		r.becomeLocked(pando.PhaseFailed, d.Reason, &d)
		return ""
	}
	r.inst.Walk = true // with no intent to halt: that tells it from what control takes out
	r.becomeLocked(pando.PhaseDraining, d.Reason, &d)
	r.events.send(r.a.Clock.Now(), pando.EventHalted, map[string]string{"reason": d.Reason})
	return ""
}

// spares says why no further instance of a service may be taken out, or notes that one is. It
// counts the instances of this host, which is the home of the service, as they are now. The caller
// holds the lock.
func (a *Agent) spares(s pando.ServiceKey) string {
	now, in := a.Clock.Now(), 0
	for _, r := range a.crews[s] {
		if r.inst.Phase.TakesFlows() && r.exited == nil && !r.over {
			in++
		}
	}
	w := a.waves[s]
	if w == nil || in >= w.whole || now.Sub(w.last) >= waveMax {
		w = &wave{whole: in}
	}
	switch out := w.whole - in; {
	case in < 2:
		return "it is the last in rotation"
	case out >= max(1, w.whole/4):
		return fmt.Sprintf("%d of %d are out of rotation", out, w.whole)
	}
	w.last = now
	a.waves[s] = w
	return ""
}
