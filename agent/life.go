package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/branch"
	"pando.run/pando/spec/span"
	"pando.run/pando/test/failpoint"
)

// reserveWait delays refilling the reserve so that it does not compete with the instance just
// claimed.
const reserveWait = 100 * time.Millisecond

// birth brings an instance from its placement into rotation.
type birth struct {
	deadline time.Time // of its start, and then of readiness
	starting starting
	wait     time.Duration // before the next probe
	behind   bool          // its branch does not have the pushes since it was made
	fetching fetching
	hooking  hooking
	seeding  seeding
}

// startInstance makes the sandbox, or wakes a warm one.
func (r *runner) startInstance(ctx context.Context, i pando.Instance, box pando.Sandbox) time.Duration {
	if box != nil {
		return r.wakeReserve(ctx, box)
	}
	if wait := reserveWait - r.a.Clock.Now().Sub(r.met); i.Warm && wait > 0 {
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
	r.become(pando.PhaseStarting, cmp.Or(r.birth.seeding.began, "the program runs"))
	return atOnce
}

// enterRotation moves a ready instance into rotation once its table is in force. Until then the
// instance stays ready. It returns the wait before the next look, or zero if the table wakes the
// instance.
func (r *runner) enterRotation(ctx context.Context) time.Duration {
	steered, err := r.tableInForce()
	if steered {
		r.inst.Hears = r.hears(r.inst)
		r.become(pando.PhaseInRotation, "steered to on this host")
		failpoint.Hit("replicate in rotation")
		r.pullState(ctx)
		return 0
	}
	if err == nil {
		return retryWait // the queue has not come to it, or will fail
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

// hears returns the address families by which an instance accepts. An error leaves those that were
// known.
func (r *runner) hears(i pando.Instance) pando.Hearing {
	spec := r.spec()
	if e, ok := spec.External(i.Ordinal); ok {
		return pando.HearingBy(e.Address.Is4(), e.Address.Is6())
	}
	if r.box == nil {
		return i.Hears
	}
	h, err := r.box.Hears(spec.Ports)
	if err != nil {
		return i.Hears
	}
	return h
}

func (r *runner) wakeReserve(ctx context.Context, box pando.Sandbox) time.Duration {
	if !r.awake {
		if err := box.Resume(ctx); err != nil {
			r.fail("wake the warm instance: "+err.Error(), nil)
			return time.Millisecond
		}
	}
	r.awake = false
	r.become(pando.PhaseStarting, "woken from the reserve")
	r.become(pando.PhaseReady, "it was fully started")
	r.birth.behind = true
	return atOnce
}

// pullState brings the state of an instance from the reserve up to date. It may wait for the disk,
// so it runs after the instance is steered to.
func (r *runner) pullState(ctx context.Context) {
	if !r.birth.behind {
		return
	}
	r.birth.behind = false
	_, err := r.a.branches.Pull(ctx, r.service, r.id)
	if err != nil && !errors.Is(err, branch.ErrNoState) {
		r.a.Log.Error("bring a warm instance's state up to date", "instance", r.id, "error", err)
	}
}

// createBranch creates the instance's branch of the state durably while the program starts. Users
// of the branch wait for it.
func (r *runner) createBranch() {
	r.a.spawn(r.a.branches.Bear(r.service, r.id, r.inst.Revision))
}

// The wait between two readiness probes of a starting instance. It grows from probeWaitMin to
// probeWaitMax.
const (
	probeWaitMin = time.Millisecond
	probeWaitMax = 50 * time.Millisecond
)

// awaitReady waits for the instance to be ready by the means in its spec.
func (r *runner) awaitReady(
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
	now := r.a.Clock.Now()
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
	case !now.Before(r.birth.deadline):
		limit := spec.Health.ReadySecondsMax
		r.fail(fmt.Sprintf("not ready within %s: %s", span.Seconds(limit), answer), nil)
		return time.Millisecond
	case !r.wire.connected:
		return min(retryWait, r.birth.deadline.Sub(now))
	case !probed && !joins:
		return r.birth.deadline.Sub(now)
	}
	r.birth.wait = min(r.birth.wait*2, probeWaitMax)
	return r.birth.wait
}
