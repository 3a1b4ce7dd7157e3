package agent

import (
	"context"
	"fmt"
	"time"

	"pando.run/pando"
	"pando.run/pando/lifecycle"
)

// These times govern how instances that do not answer are drained.
const (
	// waveMax is how long a drained instance counts against the next one if no instance replaces it.
	waveMax = time.Minute
	// unwellDrainMax is how long the flows of such an instance may last. The instance may hang, and
	// its clients with it.
	unwellDrainMax = time.Minute
)

// wave is a period in which instances of a service are drained because they do not answer.
type wave struct {
	whole int       // how many took flows when it began
	last  time.Time // when the last one was drained
}

// live sends the live probe of the spec to an instance in rotation. An instance that does not
// answer is drained and replaced. At most a quarter of the service is out at once, and never the
// last instance. Overload is not death.
func (r *runner) live(ctx context.Context, i pando.Instance, box pando.Sandbox) time.Duration {
	// Its table was not in force, or a former agent died before it recorded the step.
	if i.Phase == pando.PhaseReady {
		r.enter()
	}
	if !r.connected { // a former agent connected it, and this one failed to connect it again
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
		if !r.spared { // record it once until the instance answers again
			r.spared = true
			r.decide(ctx, pando.DecidedUnhealthy, reason+"; it stays, for "+spared, nil)
		}
		return every
	}
	return atOnce
}

// takeOut drains an instance that does not answer, or returns why it stays. Such an end is no
// failure, so its replacement starts without a back-off.
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
		// A new revision is on trial: its rollout ends.
		d.Kind, d.Reason = pando.DecidedFailed, oneLine(reason, evidenceBytesMax)
		r.becomeLocked(pando.PhaseFailed, d.Reason, &d)
		return ""
	}
	r.inst.Walk = true // without an intent to halt, unlike a drain by control
	r.becomeLocked(pando.PhaseDraining, d.Reason, &d)
	r.events.send(r.a.Clock.Now(), pando.EventHalted, map[string]string{"reason": d.Reason})
	return ""
}

// spares returns why no further instance of a service may be drained. It returns "" and records the
// drain if one may. It counts the current instances of this host, which is the home of the service.
// The caller holds the lock.
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
	out := w.whole - in
	if !lifecycle.MayEnd(out, in, w.whole) {
		if in < 2 {
			return "it is the last in rotation"
		}
		return fmt.Sprintf("%d of %d are out of rotation", out, w.whole)
	}
	w.last = now
	a.waves[s] = w
	return ""
}
