package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/branch"
	"pando.run/pando/agent/supply"
	"pando.run/pando/spec/span"
	"pando.run/pando/test/failpoint"
)

// reserveWait delays refilling the reserve so that it does not compete with the instance just
// claimed.
const reserveWait = 100 * time.Millisecond

// startInstance makes the sandbox, or wakes a warm one.
func (r *Runner) startInstance(ctx context.Context, i pando.Instance, box pando.Sandbox) time.Duration {
	if box != nil {
		return r.wakeReserve(ctx, box)
	}
	if wait := reserveWait - r.host.Clock.Now().Sub(r.met); i.Warm && wait > 0 {
		return wait
	}
	if wait := r.removeHookSandbox(ctx); wait > 0 {
		return wait
	}
	svc, spec := r.described(i)
	if spec.Stateful() && i.Run == nil {
		spec.Entrypoint, spec.Command = nil, spec.Run(i.Start)
		if i.Start == pando.StartRecover {
			return r.runRecoverHook(ctx, i, svc, spec)
		}
	}
	box, wait := r.makeSandbox(ctx, i, svc, spec)
	if box == nil {
		return wait
	}
	failpoint.Hit("replicate started")
	r.connect(ctx, i, box)
	r.box, r.link = box, box.Link()
	r.inst.IP4, r.inst.IP6 = r.link.IP4, r.link.IP6
	r.show()
	r.createBranch()
	r.serve(box)
	failpoint.Hit("replicate connected")
	r.become(pando.PhaseStarting, cmp.Or(r.start.seeding.began, "the program runs"))
	return atOnce
}

// enterRotation moves a ready instance into rotation once its table is in force. Until then the
// instance stays ready. It returns the wait before the next look, or zero if the table wakes the
// instance.
func (r *Runner) enterRotation(ctx context.Context) time.Duration {
	steered, err := r.tableInForce()
	if steered {
		r.inst.Hears = r.hears(r.inst)
		r.become(pando.PhaseInRotation, "steered to on this host")
		failpoint.Hit("replicate in rotation")
		r.pullState(ctx)
		return 0
	}
	if err == nil {
		return RetryWait // the queue has not come to it, or will fail
	}
	const reason = "ready, but not steered to: its table could not be published;" +
		" the agent's log has the reason"
	if r.inst.Reason != reason {
		r.inst.Reason = reason
		r.recorder.Add(r.inst, nil)
		r.show()
	}
	r.pullState(ctx)
	return 0
}

func (r *Runner) wakeReserve(ctx context.Context, box pando.Sandbox) time.Duration {
	if !r.awake {
		if err := box.Resume(ctx); err != nil {
			r.fail("wake the warm instance: "+err.Error(), nil)
			return time.Millisecond
		}
	}
	r.awake = false
	r.become(pando.PhaseStarting, "woken from the reserve")
	r.become(pando.PhaseReady, "it was fully started")
	r.start.behind = true
	return atOnce
}

// pullState brings the state of an instance from the reserve up to date. It may wait for the disk,
// so it runs after the instance is steered to.
func (r *Runner) pullState(ctx context.Context) {
	if !r.start.behind {
		return
	}
	r.start.behind = false
	_, err := r.host.Branches.Pull(ctx, r.Service, r.ID)
	if err != nil && !errors.Is(err, branch.ErrNoState) {
		r.host.Log.Error("bring a warm instance's state up to date", "instance", r.ID, "error", err)
	}
}

// createBranch creates the instance's branch of the state durably while the program starts. Users
// of the branch wait for it.
func (r *Runner) createBranch() {
	r.host.Spawn(r.host.Branches.Create(r.Service, r.ID, r.inst.Revision))
}

// The wait between two readiness probes of a starting instance. It grows from probeWaitMin to
// probeWaitMax.
const (
	probeWaitMin = time.Millisecond
	probeWaitMax = 50 * time.Millisecond
)

// awaitReady waits for the instance to be ready by the means in its spec.
func (r *Runner) awaitReady(
	ctx context.Context, i pando.Instance, box pando.Sandbox,
) time.Duration {
	if box == nil {
		r.fail("its sandbox is gone: the host restarted", nil)
		return time.Millisecond
	}
	if i.Run != nil {
		return 0 // it takes no flows
	}
	spec := r.spec()
	if wait, over := r.probeStartup(ctx, i, spec, box); !over {
		return wait
	}
	now := r.host.Clock.Now()
	answer := "it never reported that it is ready; a program without Pando's SDK needs a probe," +
		" for example health: {ready: \"tcp 8080\"}"
	probed := spec.Health.Ready.Kind != pando.ProbeExplicit
	joins := len(spec.Hooks.Joined) > 0 && !probed
	ready := joins || !probed && r.ready || r.proven // a report stands for no probe of the spec
	if probed && !ready {
		err := r.probe(ctx, spec.Health.Ready, spec.Health.TimeoutSeconds, spec, box)
		if ready = err == nil; err != nil {
			answer = err.Error()
		}
	}
	if ready {
		if err := r.runJoinedHook(ctx, spec, box); err != nil {
			ready, answer = false, err.Error()
		}
	}
	if ready && !r.wire.connected {
		ready, answer = false, "it is not connected to the steering: "+fmt.Sprint(r.wire.unconnected)
	}
	switch {
	case ready && i.Warm:
		if err := box.Pause(ctx); err != nil {
			r.fail("put the instance in reserve: "+err.Error(), nil)
			return time.Millisecond
		}
		r.become(pando.PhaseWarm, "in reserve")
		return 0
	case ready && r.storeSeed(i, spec):
		return 0 // seedTaken wakes it
	case ready:
		after := now.Sub(r.born()).Round(100 * time.Microsecond)
		r.become(pando.PhaseReady, fmt.Sprintf("after %s", after))
		return atOnce
	case !now.Before(r.start.deadline):
		limit := spec.Health.ReadySecondsMax
		r.fail(fmt.Sprintf("not ready within %s: %s", span.Seconds(limit), answer), nil)
		return time.Millisecond
	case !r.wire.connected:
		return min(RetryWait, r.start.deadline.Sub(now))
	case !probed && !joins:
		return r.start.deadline.Sub(now)
	}
	r.start.wait = min(r.start.wait*2, probeWaitMax)
	return r.start.wait
}

// probeStartup sends the startup probe of the spec until it succeeds once. It reports whether the
// start is over, so that readiness counts, and else the wait before the next probe. A report of the
// program that comes sooner is kept. A new agent asks again.
func (r *Runner) probeStartup(
	ctx context.Context, i pando.Instance, spec pando.Spec, box pando.Sandbox,
) (wait time.Duration, over bool) {
	now, up, s := r.host.Clock.Now(), spec.Health.Startup, &r.start.starting
	if !s.since.Equal(i.Since) {
		*s = starting{since: i.Since}
		r.start.deadline, r.start.wait = now.Add(pando.Seconds(up.SecondsMax)), probeWaitMin
		if up.Probe.Kind == pando.ProbeExplicit {
			s.over, r.start.deadline = true, now.Add(pando.Seconds(spec.Health.ReadySecondsMax))
		}
	}
	if s.over {
		return 0, true
	}
	answer := "the program never reported it (POST /v1/self/ready, or READY=1 of sd_notify)"
	if up.Probe.Kind == pando.ProbeReported {
		s.over = r.ready
	} else {
		if since := now.Sub(s.asked); since < r.start.wait && now.Before(r.start.deadline) {
			return r.start.wait - since, false
		}
		s.asked = now
		err := r.probe(ctx, up.Probe, up.TimeoutSeconds, spec, box)
		if s.over = err == nil; err != nil {
			answer = err.Error()
		}
	}
	now = r.host.Clock.Now()
	switch {
	case s.over:
		r.endStartup(i, spec, now)
		return 0, true
	case !now.Before(r.start.deadline):
		r.fail(fmt.Sprintf("not started within %s (`health.startup.within`): %s",
			span.Seconds(up.SecondsMax),
			answer), nil)
		return time.Millisecond, false
	case up.Probe.Kind == pando.ProbeReported:
		return r.start.deadline.Sub(now), false
	}
	r.start.wait = min(r.start.wait*2, pando.Seconds(up.IntervalSeconds), r.start.deadline.Sub(now))
	return r.start.wait, false
}

// endStartup begins the time of readiness. The success of a probe that is also the ready probe
// counts for both.
func (r *Runner) endStartup(i pando.Instance, spec pando.Spec, now time.Time) {
	h := spec.Health
	r.proven = r.proven || reflect.DeepEqual(h.Ready, h.Startup.Probe)
	r.start.deadline, r.start.wait = now.Add(pando.Seconds(h.ReadySecondsMax)), probeWaitMin
	r.inst.Reason = fmt.Sprintf("its startup probe succeeded after %s",
		now.Sub(r.born()).Round(100*time.Microsecond))
	r.recorder.Add(r.inst, nil)
	r.show()
}

// fetchFiles begins to bring the files that a start lacks, and imagePulled wakes the runner. The
// pull ends with the instance. It returns an error if they cannot be had.
func (r *Runner) fetchFiles(files pando.Image) error {
	switch {
	case r.start.fetching.done && r.start.fetching.err == nil:
		return fmt.Errorf("%w: %s came to this host and is gone again", pando.ErrNotReady,
			files.Reference)
	case r.start.fetching.begun:
		return r.start.fetching.err
	}
	r.start.fetching.begun, r.start.fetching.reference = true, files.Reference
	r.explainFetch("")
	r.host.Spawn(func(ctx context.Context) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		go func() { // the pull is of this instance, and ends with it
			select {
			case <-r.ended:
				cancel()
			case <-ctx.Done():
			}
		}()
		r.post(imagePulled{r.host.Supplier.Pull(ctx, r.Service.Tenant, files,
			func(what string) { r.post(imageWaits{what}) })})
	})
	return nil
}

// explainFetch records that the image of an instance is on its way, with the reason why its pull waits.
func (r *Runner) explainFetch(what string) {
	r.inst.Reason = "its image is on the way: " + r.start.fetching.reference
	if what != "" {
		r.inst.Reason += "; it waits for " + what
	}
	r.recorder.Add(r.inst, nil)
	r.show()
}

// makeSandbox makes the sandbox of an instance once everything that it needs is here.
func (r *Runner) makeSandbox(
	ctx context.Context, i pando.Instance, svc pando.Service, spec pando.Spec,
) (pando.Sandbox, time.Duration) {
	if len(spec.Configs) > 0 {
		r.host.Agent.FollowSources(r, spec)
	}
	g, lacks, err := r.host.Supplier.Supply(ctx, supply.Start{Instance: i, Service: svc, Spec: spec})
	defer func() { g.Done() }()
	switch {
	case err != nil:
	case lacks.Secrets != nil:
		return nil, r.awaitSecrets(ctx, lacks.Secrets)
	case !lacks.IsEmpty():
		if err = r.fetchFiles(lacks.Files); err == nil {
			return nil, 0
		}
	}
	var box pando.Sandbox
	if r.begun = true; err == nil {
		r.show()
		box, err = r.startSandbox(ctx, g)
	}
	if err == nil && i.From != "" {
		r.Events.Send(r.host.Clock.Now(), pando.EventRestored, map[string]string{"snapshot": i.From})
	}
	if err != nil {
		if ctx.Err() == nil {
			r.failStart(spec, err)
		}
		return nil, time.Millisecond
	}
	return box, 0
}
