package agent

import (
	"context"
	"fmt"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/records"
	"pando.run/pando/test/failpoint"
)

// These times govern how instances that do not answer are drained.
const (
	// unwellDrainMax is how long the flows of such an instance may last. The instance may hang, and
	// its clients with it.
	unwellDrainMax = time.Minute
	wholeWeight    = 100
	unwellWeight   = 25 // of an instance that fails live probes
)

// watch looks after an instance that serves or is in reserve.
type watch struct {
	probed   time.Time // the time of the last probe
	falls    int       // probes that failed in a row
	spared   bool      // it keeps its share although it does not answer, and that is recorded
	overload overload
}

// watchHealth sends the live probe of the spec to an instance in rotation. It reports an instance
// that does not answer, and control replaces it: only control knows how many of the service are out
// on all hosts. Overload is not death.
func (r *runner) watchHealth(ctx context.Context, i pando.Instance, box pando.Sandbox) time.Duration {
	soon := time.Duration(0)
	if i.Phase == pando.PhaseReady {
		soon = r.enterRotation(ctx)
	}
	if !r.wire.connected { // a former agent connected it, and this one failed to connect it again
		return retryWait
	}
	if i.Phase == pando.PhaseWarm {
		return r.dozeInReserve(ctx, box)
	}
	spec := r.spec()
	if spec.Health.Live.Kind == pando.ProbeExplicit {
		return soon
	}
	if soon > 0 {
		return soon
	}
	now := r.a.Clock.Now()
	every := pando.Seconds(spec.Health.IntervalSeconds)
	if since := now.Sub(r.watch.probed); since < every {
		return every - since
	}
	r.watch.probed = now
	err := r.probe(ctx, spec.Health.Live, spec.Health.TimeoutSeconds, spec, box)
	if e, ok := spec.External(i.Ordinal); ok {
		r.judgeExternal(ctx, e, spec.Health.Fall, err)
		return every
	}
	busy := r.isOverloaded(ctx, box, err)
	r.answers.overload(busy)
	if busy {
		r.lowerWeight(err)
		return every
	}
	if err == nil {
		r.watch.falls = 0
		r.clearUnwell()
		r.updateHears()
		r.setWeight(wholeWeight, "it answers its live probes again")
		return every
	}
	if r.watch.falls++; 2*r.watch.falls >= spec.Health.Fall {
		r.setWeight(unwellWeight, fmt.Sprintf("a quarter of its share of new flows, while its live probes "+
			"fail: %v", err))
	}
	if r.watch.falls < spec.Health.Fall {
		return every
	}
	r.watch.falls = 0
	r.reportUnwell(fmt.Sprintf("%d live probes failed: %v", spec.Health.Fall, err))
	return every
}

// setWeight gives an instance in rotation another share of new flows. An overloaded one recovers
// with less of them, before it is taken out. Its established flows stay.
func (r *runner) setWeight(weight int, reason string) {
	if r.inst.Phase != pando.PhaseInRotation || r.inst.Weight == weight {
		return
	}
	r.inst.Weight, r.inst.Reason = weight, records.OneLine(reason, records.EvidenceBytesMax)
	r.recorder.Add(r.inst, nil)
	r.show()
}

// reportUnwell marks an instance that does not answer, for control. That is no failure of the
// instance, so its replacement starts without a back-off. A new revision on trial has failed: its
// rollout ends.
func (r *runner) reportUnwell(reason string) {
	if r.inst.Phase != pando.PhaseInRotation || r.inst.Unwell != "" {
		return
	}
	d := r.decision(pando.DecidedUnhealthy, reason, nil)
	svc, _ := r.a.records.Service(r.service, r.inst.Revision)
	if svc.Target != svc.Current && r.inst.Revision == svc.Target {
		d.Kind, d.Reason = pando.DecidedFailed, records.OneLine(reason, records.EvidenceBytesMax)
		r.becomeFor(pando.PhaseFailed, d.Reason, &d)
		return
	}
	r.inst.Unwell = d.Reason
	r.recorder.Add(r.inst, &d)
	r.show()
}

// updateHears records a change of the address families by which the instance accepts.
func (r *runner) updateHears() {
	if h := r.hears(r.inst); h != r.inst.Hears {
		r.inst.Hears = h
		r.recorder.Add(r.inst, nil)
		r.show()
	}
}

// clearUnwell takes back the report about an instance that answers again.
func (r *runner) clearUnwell() {
	if r.inst.Unwell == "" {
		return
	}
	r.inst.Unwell = ""
	r.recorder.Add(r.inst, nil)
	r.show()
}

// dozeInReserve pauses an instance in reserve unless an ask on its way may claim it.
func (r *runner) dozeInReserve(ctx context.Context, box pando.Sandbox) time.Duration {
	called := r.called > 0
	if called == r.awake {
		return 0
	}
	change, what := box.Pause, "put the instance in reserve again"
	if called {
		change, what = box.Resume, "wake the instance for an ask"
	}
	if err := change(ctx); err != nil {
		r.fail(what+": "+err.Error(), nil)
		return time.Millisecond
	}
	r.awake = called
	failpoint.Hit("replicate prepared")
	return 0
}
