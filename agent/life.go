package agent

import (
	"context"
	"fmt"
	"time"

	"pando.run/pando"
	"pando.run/pando/failpoint"
	"pando.run/pando/lifecycle"
	"pando.run/pando/state"
)

// reserveWait delays refilling the reserve so that it does not compete with the instance just
// claimed.
const reserveWait = 100 * time.Millisecond

// start makes the sandbox, or wakes a warm one.
func (r *runner) start(ctx context.Context, i pando.Instance, box pando.Sandbox) time.Duration {
	if box != nil {
		return r.resume(ctx, box)
	}
	if wait := reserveWait - r.a.Clock.Now().Sub(i.Since); i.Warm && wait > 0 {
		return wait
	}
	r.a.mu.Lock()
	svc, spec := r.a.world.Services[r.service].V, r.a.specOf(i)
	r.begun = true
	r.a.mu.Unlock()
	box, err := r.a.Sandboxes.Start(ctx, pando.SandboxSpec{Instance: i, Spec: spec, VIP4: svc.VIP4, VIP6: svc.VIP6})
	if err != nil {
		if ctx.Err() == nil {
			r.fail(err.Error(), nil)
		}
		return time.Millisecond
	}
	failpoint.Hit("replicate started")
	r.connect(ctx, i, box)
	link := box.Link()
	r.a.mu.Lock()
	r.box, r.link = box, link
	r.inst.IP4, r.inst.IP6 = link.IP4, link.IP6
	r.a.mu.Unlock()
	r.bear()
	r.serve(box)
	failpoint.Hit("replicate connected")
	r.become(pando.PhaseStarting, "the program runs")
	return atOnce
}

// connect lets the instance take packets. It is idempotent. An instance that is not connected does
// not become ready; step tries again.
func (r *runner) connect(ctx context.Context, i pando.Instance, box pando.Sandbox) {
	r.a.mu.Lock()
	svc, spec := r.a.world.Services[r.service].V, r.a.specOf(i)
	r.a.mu.Unlock()
	err := r.a.Steering.Connect(ctx, box.Link(), spec.Ports, svc.VIP4, svc.VIP6)
	if err != nil && (r.unconnected == nil || err.Error() != r.unconnected.Error()) {
		r.a.Log.Error("connect an instance to steering: it is tried again", "instance", r.id, "error", err)
	}
	r.connected, r.tried, r.unconnected = err == nil, r.a.Clock.Now(), err
}

// connectAgain retries a failed connect, at most once per retryWait.
func (r *runner) connectAgain(ctx context.Context, i pando.Instance, box pando.Sandbox) {
	if r.a.Clock.Now().Sub(r.tried) >= retryWait {
		r.connect(ctx, i, box)
	}
}

// enter moves an instance into rotation if its table is in force. Otherwise the instance stays
// ready, and the table's publication kicks it.
func (r *runner) enter() {
	r.a.mu.Lock()
	defer r.a.mu.Unlock()
	if r.a.inForce(r.service) {
		r.becomeLocked(pando.PhaseInRotation, "steered to on this host", nil)
		return
	}
	const reason = "ready, but not steered to: its table could not be published; the agent's log has the reason"
	if r.inst.Phase == pando.PhaseReady && r.inst.Reason != reason {
		r.inst.Reason = reason
		r.recorder.add(r.inst, nil)
	}
}

func (r *runner) resume(ctx context.Context, box pando.Sandbox) time.Duration {
	if !r.awake {
		if err := box.Resume(ctx); err != nil {
			r.fail("wake the warm instance: "+err.Error(), nil)
			return time.Millisecond
		}
	}
	r.awake = false
	r.become(pando.PhaseStarting, "woken from the reserve")
	r.become(pando.PhaseReady, "it was fully started")
	r.enter()
	// The pull may wait for the disk, so it runs after the flows for the instance are released.
	if b := r.awaitBranch(ctx); b != nil {
		if _, err := b.Pull(ctx, r.a.head(r.service), r.a.Clock.Now()); err != nil {
			r.a.Log.Error("bring a warm instance's state up to date", "instance", r.id, "error", err)
		}
	}
	return atOnce
}

// bear creates the instance's branch of the state durably while the program starts. Users of the
// branch wait for it (awaitBranch).
func (r *runner) bear() {
	born := make(chan struct{})
	r.a.mu.Lock()
	r.born = born
	revision := r.inst.Revision
	r.a.mu.Unlock()
	r.a.spawn(func(ctx context.Context) {
		defer close(born)
		b, err := r.a.repo(r.service, revision).Born(ctx, r.id, r.a.head(r.service))
		if err != nil {
			r.a.Log.Error("open the state of an instance", "instance", r.id, "error", err)
			return
		}
		r.a.mu.Lock()
		r.branch = b
		r.a.mu.Unlock()
	})
}

// awaitBranch returns the instance's branch of the state, or nil if it has none. It waits while the
// branch is being created.
func (r *runner) awaitBranch(ctx context.Context) *state.Branch {
	r.a.mu.Lock()
	born := r.born
	r.a.mu.Unlock()
	if born != nil {
		select {
		case <-born:
		case <-ctx.Done():
		}
	}
	r.a.mu.Lock()
	defer r.a.mu.Unlock()
	return r.branch
}

// specOf returns the spec by which an instance runs. The caller holds the lock.
func (a *Agent) specOf(i pando.Instance) pando.Spec {
	s, _ := a.world.SpecOf(i.Service, i.Revision)
	return s
}

func (r *runner) spec(i pando.Instance) pando.Spec {
	r.a.mu.Lock()
	defer r.a.mu.Unlock()
	return r.a.specOf(i)
}

// The wait between two readiness probes of a starting instance. It grows from probeWaitMin to
// probeWaitMax.
const (
	probeWaitMin = time.Millisecond
	probeWaitMax = 50 * time.Millisecond
)

// awaitReady waits for the instance to be ready by the means in its spec.
func (r *runner) awaitReady(ctx context.Context, i pando.Instance, box pando.Sandbox) time.Duration {
	if box == nil {
		r.fail("its sandbox is gone: the host restarted", nil)
		return time.Millisecond
	}
	spec := r.spec(i)
	now := r.a.Clock.Now()
	if !r.starting.Equal(i.Since) {
		r.starting, r.deadline, r.wait = i.Since, now.Add(pando.Seconds(spec.Health.ReadySecondsMax)), probeWaitMin
	}
	r.a.mu.Lock()
	ready := r.ready
	r.a.mu.Unlock()
	answer := "it never reported that it is ready; a program without Pando's SDK needs a probe, for example health: {ready: \"tcp 8080\"}"
	if !ready && spec.Health.Ready.Kind != pando.ProbeExplicit {
		err := r.probe(ctx, spec.Health.Ready, spec, box)
		if ready = err == nil; err != nil {
			answer = err.Error()
		}
	}
	if ready && !r.connected {
		ready, answer = false, "it is not connected to the steering: "+fmt.Sprint(r.unconnected)
	}
	switch {
	case ready && i.Warm:
		if err := box.Pause(ctx); err != nil {
			r.fail("put the instance in reserve: "+err.Error(), nil)
			return time.Millisecond
		}
		r.become(pando.PhaseWarm, "in reserve")
		return 0
	case ready:
		r.become(pando.PhaseReady, fmt.Sprintf("after %s", now.Sub(i.Born).Round(100*time.Microsecond)))
		r.enter()
		failpoint.Hit("replicate in rotation")
		return atOnce
	case !now.Before(r.deadline):
		r.fail(fmt.Sprintf("not ready within %gs: %s", spec.Health.ReadySecondsMax, answer), nil)
		return time.Millisecond
	case !r.connected:
		return min(retryWait, r.deadline.Sub(now))
	case spec.Health.Ready.Kind == pando.ProbeExplicit:
		return r.deadline.Sub(now)
	}
	r.wait = min(r.wait*2, probeWaitMax)
	return r.wait
}

func (r *runner) probe(ctx context.Context, p pando.Probe, spec pando.Spec, box pando.Sandbox) error {
	ctx, cancel := context.WithTimeout(ctx, pando.Seconds(spec.Health.TimeoutSeconds))
	defer cancel()
	var fallback pando.Port
	if len(spec.Ports) > 0 {
		fallback = spec.Ports[0]
	}
	return r.a.Prober.Probe(ctx, p, box, fallback)
}

// fail takes the instance out of rotation at once and records a decision with the evidence.
func (r *runner) fail(reason string, exit *pando.Exit) {
	var lines []string
	inputs := map[string]float64{}
	if box := r.sandboxLeft(); box != nil {
		lines = box.LastLines(20)
	}
	if exit != nil && exit.Signal == "" {
		inputs[lifecycle.ExitCode] = float64(exit.Code)
	}
	d := r.decision(pando.DecidedFailed, reason, inputs)
	d.Lines, reason = lines, d.Reason
	r.a.mu.Lock()
	defer r.a.mu.Unlock()
	if r.inst.Phase.May(pando.PhaseFailed) {
		r.inst.Exit = exit
		r.becomeLocked(pando.PhaseFailed, reason, &d)
	}
}

// sandboxLeft returns the sandbox, even after its program has ended.
func (r *runner) sandboxLeft() pando.Sandbox {
	r.a.mu.Lock()
	defer r.a.mu.Unlock()
	return r.box
}

func (r *runner) decision(kind pando.DecisionKind, reason string, inputs map[string]float64) pando.Decision {
	now := r.a.Clock.Now()
	reason = oneLine(reason, evidenceBytesMax) // probes and errors quote the program
	if inputs == nil {
		inputs = map[string]float64{}
	}
	r.a.mu.Lock()
	inputs["revision"] = float64(r.inst.Revision)
	r.a.mu.Unlock()
	return pando.Decision{
		ID: r.a.IDs.Sequential(now), Service: r.service, Instance: r.id, Kind: kind, Reason: reason,
		By: pando.Asker{Kind: pando.AskerControl, Name: "agent " + string(r.a.Host.Name)}, Inputs: inputs, At: now,
	}
}

// decide records a decision. A decision is evidence, not a step of the instance. If the write
// fails, decide logs a warning and the instance continues.
func (r *runner) decide(ctx context.Context, kind pando.DecisionKind, reason string, inputs map[string]float64) {
	d := r.decision(kind, reason, inputs)
	if _, err := r.a.commit(ctx, pando.Txn{Put: []pando.Stored{d}}); err != nil {
		r.a.Log.Warn("a decision could not be recorded", "kind", kind, "instance", r.id, "reason", reason, "error", err)
	}
}
