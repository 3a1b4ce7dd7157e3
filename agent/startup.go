package agent

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"pando.run/pando"
	"pando.run/pando/spec/span"
)

// starting is the start that an instance is in.
type starting struct {
	since time.Time // as in its record
	over  bool      // its startup probe has succeeded, or it has none
	asked time.Time // the last startup probe
}

// probeStartup sends the startup probe of the spec until it succeeds once. It reports whether the
// start is over, so that readiness counts, and else the wait before the next probe. A report of the
// program that comes sooner is kept. A new agent asks again.
func (r *runner) probeStartup(
	ctx context.Context, i pando.Instance, spec pando.Spec, box pando.Sandbox,
) (wait time.Duration, over bool) {
	now, up, s := r.a.Clock.Now(), spec.Health.Startup, &r.birth.starting
	if !s.since.Equal(i.Since) {
		*s = starting{since: i.Since}
		r.birth.deadline, r.birth.wait = now.Add(pando.Seconds(up.SecondsMax)), probeWaitMin
		if up.Probe.Kind == pando.ProbeExplicit {
			s.over, r.birth.deadline = true, now.Add(pando.Seconds(spec.Health.ReadySecondsMax))
		}
	}
	if s.over {
		return 0, true
	}
	answer := "the program never reported it (POST /v1/self/ready, or READY=1 of sd_notify)"
	if up.Probe.Kind == pando.ProbeReported {
		s.over = r.ready
	} else {
		if since := now.Sub(s.asked); since < r.birth.wait && now.Before(r.birth.deadline) {
			return r.birth.wait - since, false
		}
		s.asked = now
		err := r.probe(ctx, up.Probe, up.TimeoutSeconds, spec, box)
		if s.over = err == nil; err != nil {
			answer = err.Error()
		}
	}
	now = r.a.Clock.Now()
	switch {
	case s.over:
		r.endStartup(i, spec, now)
		return 0, true
	case !now.Before(r.birth.deadline):
		r.fail(fmt.Sprintf("not started within %s (`health.startup.within`): %s",
			span.Seconds(up.SecondsMax),
			answer), nil)
		return time.Millisecond, false
	case up.Probe.Kind == pando.ProbeReported:
		return r.birth.deadline.Sub(now), false
	}
	r.birth.wait = min(r.birth.wait*2, pando.Seconds(up.IntervalSeconds), r.birth.deadline.Sub(now))
	return r.birth.wait, false
}

// endStartup begins the time of readiness. The success of a probe that is also the ready probe
// counts for both.
func (r *runner) endStartup(i pando.Instance, spec pando.Spec, now time.Time) {
	h := spec.Health
	r.proven = r.proven || reflect.DeepEqual(h.Ready, h.Startup.Probe)
	r.birth.deadline, r.birth.wait = now.Add(pando.Seconds(h.ReadySecondsMax)), probeWaitMin
	r.inst.Reason = fmt.Sprintf("its startup probe succeeded after %s",
		now.Sub(r.born()).Round(100*time.Microsecond))
	r.recorder.Add(r.inst, nil)
	r.show()
}
