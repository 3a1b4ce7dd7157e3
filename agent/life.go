package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"pando.run/pando"
	"pando.run/pando/lifecycle"
	"pando.run/pando/state"
)

// reserveWait is how long the start of a reserve stands back for the instance whose claim called for it: nobody waits for the
// reserve, somebody waits for the other.
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
	pando.Failpoint("replicate started")
	r.connect(ctx, i, box)
	link := box.Link()
	r.a.mu.Lock()
	r.box = box
	r.inst.IP4, r.inst.IP6 = link.IP4, link.IP6
	r.a.mu.Unlock()
	r.bear()
	r.serve(box)
	pando.Failpoint("replicate connected")
	r.become(pando.PhaseStarting, "the program runs")
	return time.Microsecond
}

// connect lets the instance take packets. Doing so again changes nothing.
func (r *runner) connect(ctx context.Context, i pando.Instance, box pando.Sandbox) {
	r.a.mu.Lock()
	svc, spec := r.a.world.Services[r.service].V, r.a.specOf(i)
	r.a.mu.Unlock()
	if err := r.a.Steering.Connect(ctx, box.Link(), spec.Ports, svc.VIP4, svc.VIP6); err != nil {
		r.a.Log.Error("connect an instance to steering", "instance", r.id, "error", err)
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
	r.become(pando.PhaseInRotation, "steered to on this host")
	if b := r.awaitBranch(ctx); b != nil { // durably if anything is new, so behind the flows that wait for the instance
		if _, err := b.Pull(ctx, r.a.head(r.service), r.a.Clock.Now()); err != nil {
			r.a.Log.Error("bring a warm instance's state up to date", "instance", r.id, "error", err)
		}
	}
	return time.Microsecond
}

// bear gives the instance its branch of the state, durably, while the program finds its feet. Who wants the branch waits for
// its birth (awaitBranch).
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

// awaitBranch is the instance's branch of the state, after its birth if that is under way; nil: it has none.
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

// serve gives the instance its API.
func (r *runner) serve(box pando.Sandbox) {
	server := &http.Server{Handler: r.a.Serve(r.a, r.id), ReadHeaderTimeout: 10 * time.Second}
	l := box.Listener()
	r.a.spawn(func(ctx context.Context) {
		stop := context.AfterFunc(ctx, func() { server.Close() })
		defer stop()
		if err := server.Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) && ctx.Err() == nil {
			r.a.Log.Debug("an instance's API ended", "instance", r.id, "error", err)
		}
	})
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

// How often an instance that is starting is asked whether it is ready: at first every probeWaitMin, then ever more seldom.
const (
	probeWaitMin = time.Millisecond
	probeWaitMax = 50 * time.Millisecond
)

// awaitReady waits for the instance to be ready, in the way that its spec says.
func (r *runner) awaitReady(ctx context.Context, i pando.Instance, box pando.Sandbox) time.Duration {
	if box == nil {
		r.fail("its sandbox is gone: the host restarted", nil)
		return time.Millisecond
	}
	spec := r.spec(i)
	now := r.a.Clock.Now()
	if r.deadline.IsZero() {
		r.deadline, r.wait = now.Add(pando.Seconds(spec.Health.ReadySecondsMax)), probeWaitMin
	}
	r.a.mu.Lock()
	ready := r.ready
	r.a.mu.Unlock()
	answer := "it never said that it is ready; a program that knows nothing of Pando needs a probe, for example health: {ready: \"tcp 8080\"}"
	if !ready && spec.Health.Ready.Kind != pando.ProbeExplicit {
		err := r.probe(ctx, spec.Health.Ready, spec, box)
		if ready = err == nil; err != nil {
			answer = err.Error()
		}
	}
	switch {
	case ready && i.Warm:
		if err := box.Pause(ctx); err != nil {
			r.fail("put the instance in reserve: "+err.Error(), nil)
			return time.Millisecond
		}
		r.deadline = time.Time{}
		r.become(pando.PhaseWarm, "in reserve")
		return 0
	case ready:
		r.deadline = time.Time{}
		r.become(pando.PhaseReady, fmt.Sprintf("after %s", now.Sub(i.Born).Round(100*time.Microsecond)))
		r.become(pando.PhaseInRotation, "steered to on this host")
		pando.Failpoint("replicate in rotation")
		return time.Microsecond
	case !now.Before(r.deadline):
		r.fail(fmt.Sprintf("not ready within %gs: %s", spec.Health.ReadySecondsMax, answer), nil)
		return time.Millisecond
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

// live asks an instance in rotation how it is, if its spec says how. One that does not answer is replaced, but never the
// last one: overload is not death.
func (r *runner) live(ctx context.Context, i pando.Instance, box pando.Sandbox) time.Duration {
	if i.Phase == pando.PhaseReady { // a former agent died before it could say more
		r.become(pando.PhaseInRotation, "steered to on this host")
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
		r.falls = 0
		return every
	}
	if r.falls++; r.falls < spec.Health.Fall {
		return every
	}
	r.falls = 0
	reason := fmt.Sprintf("%d live probes failed: %v", spec.Health.Fall, err)
	if r.a.others(i) == 0 {
		r.decide(ctx, pando.DecidedUnhealthy, reason+"; it stays, for it is the last in rotation", nil)
		return every
	}
	r.fail(reason, nil)
	return time.Millisecond
}

// others counts the other instances of the service that take flows.
func (a *Agent) others(i pando.Instance) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for _, o := range a.world.Of(i.Service) {
		if o.ID != i.ID && o.Phase.TakesFlows() {
			n++
		}
	}
	return n
}

// fail ends the instance's service: out of rotation at once, with a decision that has the evidence.
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
	d.Lines = lines
	r.a.mu.Lock()
	defer r.a.mu.Unlock()
	if r.inst.Phase.May(pando.PhaseFailed) {
		r.inst.Exit = exit
		r.becomeLocked(pando.PhaseFailed, reason, &d)
	}
}

// sandboxLeft is the sandbox, also after its program has ended.
func (r *runner) sandboxLeft() pando.Sandbox {
	r.a.mu.Lock()
	defer r.a.mu.Unlock()
	return r.box
}

func (r *runner) decision(kind pando.DecisionKind, reason string, inputs map[string]float64) pando.Decision {
	now := r.a.Clock.Now()
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

// decide records a decision. It is evidence, not a step of life: if it cannot be written life goes on, with a line in the
// agent's log.
func (r *runner) decide(ctx context.Context, kind pando.DecisionKind, reason string, inputs map[string]float64) {
	d := r.decision(kind, reason, inputs)
	if _, err := r.a.commit(ctx, pando.Txn{Put: []pando.Stored{d}}); err != nil {
		r.a.Log.Warn("a decision could not be recorded", "kind", kind, "instance", r.id, "reason", reason, "error", err)
	}
}
