package runner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/records"
	"pando.run/pando/test/failpoint"
)

// judgeExternal gives an external endpoint its share of new flows by the result of a live probe. An
// endpoint that does not answer gets none until it answers again. Its instance stays, because a
// restart would change nothing. The last endpoint with a share keeps it.
func (r *Runner) judgeExternal(ctx context.Context, e pando.External, fall int, err error) {
	at := pando.External{Address: e.Address, Port: e.Port}
	if err == nil {
		back := r.inst.Weight == 0
		r.watch.falls, r.watch.spared = 0, false
		r.setWeight(e.Weight, "it answers its live probes again")
		if back {
			r.decide(ctx, pando.DecidedUnhealthy,
				fmt.Sprintf("%s answers again and gets new connections", at), nil)
		}
		return
	}
	if r.watch.falls++; r.watch.falls < fall || r.inst.Weight == 0 {
		return
	}
	reason := fmt.Sprintf("%s: %d live probes failed: %v", at, fall, err)
	switch {
	case r.host.Agent.OnlyShare(r):
		if !r.watch.spared { // record it once until the endpoint answers again
			r.watch.spared = true
			r.decide(ctx, pando.DecidedUnhealthy,
				reason+"; it stays, for no other endpoint gets new connections", nil)
		}
	default:
		r.setWeight(0, reason)
		r.decide(ctx, pando.DecidedUnhealthy,
			reason+"; it gets no new connections until it answers", nil)
	}
}

// These bounds separate an overloaded instance from a dead one.
const (
	// workingShare is the least processor time of an instance that works, of the time that passed.
	// A program that waits for a lock uses none.
	workingShare = 0.02
	// StrayMax is how long one instance may be overloaded while another one of the service answers, on
	// any host. Its trouble is then its own, such as an endless loop.
	StrayMax = time.Minute
)

// isOverloaded reports whether a failed probe shows overload: the instance works, and is too busy
// to answer. Such an instance gets fewer flows and stays.
func (r *Runner) isOverloaded(ctx context.Context, box pando.Sandbox, failed error) bool {
	now, o := r.host.Clock.Now(), &r.watch.overload
	u, err := box.Usage(ctx)
	was := *o
	o.used, o.seen = u.CPU, now
	if err != nil || !errors.Is(failed, pando.ErrBusy) {
		o.since = time.Time{}
		return false
	}
	if o.since.IsZero() {
		o.since = now
	}
	if now.Sub(o.since) >= StrayMax && r.host.Agent.OthersAnswer(r) {
		return false
	}
	if was.seen.IsZero() {
		return true // the next probe has two looks
	}
	return u.CPU-was.used >= time.Duration(workingShare*float64(now.Sub(was.seen)))
}

// lowerWeight lowers the share of an overloaded instance.
func (r *Runner) lowerWeight(failed error) {
	r.watch.falls = 0
	r.setWeight(UnwellWeight, fmt.Sprintf("overloaded: a quarter of its share of new flows, until it "+
		"answers again: %v", failed))
}

// These times govern how instances that do not answer are drained.
const (
	// UnwellDrainMax is how long the flows of such an instance may last. The instance may hang, and
	// its clients with it.
	UnwellDrainMax = time.Minute
	WholeWeight    = 100
	UnwellWeight   = 25 // of an instance that fails live probes
)

// watchHealth sends the live probe of the spec to an instance in rotation. It reports an instance
// that does not answer, and control replaces it: only control knows how many of the service are out
// on all hosts. Overload is not death.
func (r *Runner) watchHealth(ctx context.Context, i pando.Instance, box pando.Sandbox) time.Duration {
	soon := time.Duration(0)
	if i.Phase == pando.PhaseReady {
		soon = r.enterRotation(ctx)
	}
	if !r.wire.connected { // a former agent connected it, and this one failed to connect it again
		return RetryWait
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
	now := r.host.Clock.Now()
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
		r.setWeight(WholeWeight, "it answers its live probes again")
		return every
	}
	if r.watch.falls++; 2*r.watch.falls >= spec.Health.Fall {
		r.setWeight(UnwellWeight, fmt.Sprintf("a quarter of its share of new flows, while its live probes "+
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
func (r *Runner) setWeight(weight int, reason string) {
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
func (r *Runner) reportUnwell(reason string) {
	if r.inst.Phase != pando.PhaseInRotation || r.inst.Unwell != "" {
		return
	}
	d := r.decision(pando.DecidedUnhealthy, reason, nil)
	svc, _ := r.host.Records.Service(r.Service, r.inst.Revision)
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
func (r *Runner) updateHears() {
	if h := r.hears(r.inst); h != r.inst.Hears {
		r.inst.Hears = h
		r.recorder.Add(r.inst, nil)
		r.show()
	}
}

// clearUnwell takes back the report about an instance that answers again.
func (r *Runner) clearUnwell() {
	if r.inst.Unwell == "" {
		return
	}
	r.inst.Unwell = ""
	r.recorder.Add(r.inst, nil)
	r.show()
}

// dozeInReserve pauses an instance in reserve unless an ask on its way may claim it.
func (r *Runner) dozeInReserve(ctx context.Context, box pando.Sandbox) time.Duration {
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

// answers keeps the newest answers of an instance to its probes, and the health they show. Its
// methods may be called from any goroutine.
type answers struct {
	mu     sync.Mutex
	newest []pando.ProbeAnswer // oldest first, at most pando.AnswersKept
	busy   bool
}

// note adds an answer. failed is nil for a good one.
func (a *answers) note(at time.Time, p pando.ProbeKind, failed error) {
	one := pando.ProbeAnswer{At: at, Probe: p}
	if failed != nil {
		one.Error = records.OneLine(failed.Error(), records.EvidenceBytesMax)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := len(a.newest); n >= pando.AnswersKept {
		a.newest = a.newest[n-pando.AnswersKept+1:]
	}
	a.newest = append(slices.Clip(a.newest), one)
}

// overload notes whether the instance is overloaded.
func (a *answers) overload(is bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.busy = is
}

// of returns the health of an instance in a phase, and its newest answers.
func (a *answers) of(p pando.Phase) (pando.HealthState, []pando.ProbeAnswer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	is := pando.HealthReady
	switch {
	case p == pando.PhasePlaced || p == pando.PhaseStarting:
		is = pando.HealthStarting
	case p == pando.PhaseFailed:
		is = pando.HealthDead
	case a.busy:
		is = pando.HealthOverloaded
	}
	return is, slices.Clone(a.newest)
}
