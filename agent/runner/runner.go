// Package runner takes the instances of one host through their lives: each from its placement into
// rotation, out again, and to the merge of its state.
//
// A runner sees its agent through one interface, Agent. It never decides that an instance starts or
// leaves: control does, or the instance itself.
package runner

import (
	"context"
	"fmt"
	"hash/fnv"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/events"
	"pando.run/pando/agent/records"
	"pando.run/pando/agent/socket"
	"pando.run/pando/lifecycle"
	"pando.run/pando/world"
)

// The wait between two attempts at a failing step. It doubles after each failure.
const (
	RetryWait    = 200 * time.Millisecond
	RetryWaitMax = 2 * time.Second
)

// Runner takes one instance through its life on this host. It is an actor with one goroutine, which
// alone touches the fields of its life. Other goroutines send it messages, and it shows its status
// to the agent.
//
// A runner compares the record (wanted) with the sandbox (actual) and does the next step.
type Runner struct {
	ID      pando.InstanceID
	Service pando.ServiceKey
	Events  *events.Feed  // of the instance
	Caller  socket.Caller // the instance at its socket
	Shown   Status        // as last shown; the lock of the records guards it

	host     *Host
	inbox    inbox
	ended    chan struct{} // closed when the runner has ended
	recorder *records.Recorder
	answers  answers
	// spread, out of 1,024, scales the extra sixteenth of this runner's waits. The instances of a host
	// then do not all retry at one instant after an outage.
	spread time.Duration

	// The rest is the state of its life. Only the goroutine of the runner touches it.

	// inst is the newest truth: it has the agent's own steps before the registry has them.
	inst   pando.Instance
	box    pando.Sandbox
	link   pando.Link // of box
	exited *pando.Exit
	over   bool   // its record is gone
	ready  bool   // the application reported that it is ready
	proven bool   // its ready probe has succeeded as the startup probe, or in its seed
	called int    // asks on their way that may claim it from the reserve
	begun  bool   // its start took the prepared work, if there was any
	gone   bool   // it has ended
	moving bool   // its program is on its way to another host
	silent string // why its shim does not answer; "": it does
	before string // the reason on its line before that
	// inherited: a former agent began its life, and may have written asks about it.
	inherited bool
	enlisted  uint64 // the reads of asks that had begun before it
	// met is when this agent got to know it, or its claim from the reserve, by the clock of this host.
	// The times that control wrote are of another clock.
	met   time.Time
	awake bool // although it is in reserve

	stuck      string        // the step that failed last
	pause      time.Duration // before its next attempt
	complained time.Time

	// The stages of the life, each with the state that is its own.
	wire    wire
	start   start
	renewal renewal
	config  reconfiguring
	watch   watch
	leave   leave
	end     end
}

// New returns the runner of an instance that has a sandbox or nil. place is the number of reads
// of asks that have begun before it. Run runs it.
func New(h *Host, i pando.Instance, box pando.Sandbox, place uint64) *Runner {
	r := &Runner{
		host: h, ID: i.ID, Service: i.Service, Events: events.New(h.Clock.Now()),
		inbox: inbox{filled: make(chan struct{}, 1)}, ended: make(chan struct{}),
		inst: i, box: box, inherited: box != nil || i.Phase != pando.PhasePlaced,
		enlisted: place, met: h.Clock.Now(),
	}
	if box != nil {
		r.link = box.Link()
	}
	r.Shown = r.status()
	r.recorder = h.Records.NewRecorder(i.ID)
	name := fnv.New32a()
	_, _ = name.Write([]byte(i.ID)) // never fails
	r.spread = time.Duration(name.Sum32() % 1024)
	return r
}

func (r *Runner) status() Status {
	return Status{
		Instance: r.inst, Box: r.box, Link: r.link, Runs: r.box != nil && r.exited == nil, Begun: r.begun,
		Born:   r.born(),
		Silent: r.silent,
	}
}

// born returns when the instance came to this host, by the clock of this host. Its record has the
// clock of control, which counts only if a former agent met the instance.
func (r *Runner) born() time.Time {
	if r.inherited && r.inst.Born.Before(r.met) {
		return r.inst.Born
	}
	return r.met
}

// show sends the state of the runner to the agent.
func (r *Runner) show() { r.host.Agent.Show(r, r.status()) }

func exitReason(e pando.Exit) string {
	switch {
	case e.OOMKilled:
		return "it was killed for using more memory than resources.memory allows"
	case e.Signal != "":
		return "it was killed by " + e.Signal
	}
	return fmt.Sprintf("it exited with %d", e.Code)
}

// become moves the instance to its next phase: at once on this host, soon in the registry.
func (r *Runner) become(p pando.Phase, reason string) { r.becomeFor(p, reason, nil) }

// becomeFor moves the instance to its next phase and records the decision with it.
func (r *Runner) becomeFor(p pando.Phase, reason string, because *pando.Decision) {
	r.inst = r.inst.Become(p, r.host.Clock.Now(), reason)
	r.endTableWait()
	r.recorder.Add(r.inst, because)
	r.show()
}

// spec returns the spec by which the instance runs.
func (r *Runner) spec() pando.Spec {
	_, spec := r.described(r.inst)
	return spec
}

// described returns the record of the service, and the spec by which an instance runs.
func (r *Runner) described(i pando.Instance) (pando.Service, pando.Spec) {
	svc, spec := r.host.Records.Service(r.Service, i.Revision)
	if i.Run != nil {
		spec = spec.ForRun(*i.Run)
	}
	return svc, spec
}

// probe asks a probe of the spec once, and keeps the answer.
func (r *Runner) probe(
	ctx context.Context, p pando.Probe, limitSeconds float64, spec pando.Spec, box pando.Sandbox,
) error {
	ctx, cancel := context.WithTimeout(ctx, pando.Seconds(limitSeconds))
	defer cancel()
	err := r.host.Prober.Probe(ctx, p, box, spec.ProbePort(p))
	r.answers.note(r.host.Clock.Now(), p.Kind, err)
	return err
}

// fail takes the instance out of rotation at once and records a decision with the evidence.
func (r *Runner) fail(reason string, exit *pando.Exit) {
	if !r.inst.Phase.May(pando.PhaseFailed) {
		return
	}
	r.rejectSeed(reason)
	inputs := map[string]float64{}
	if exit != nil && exit.Signal == "" {
		inputs[lifecycle.ExitCode] = float64(exit.Code)
	}
	if i := r.inst; i.Phase == pando.PhaseInRotation { // this host wrote Since
		if served := r.host.Clock.Now().Sub(i.Since); served > 0 {
			inputs[lifecycle.Served] = served.Seconds()
		}
	}
	kind := lifecycle.OfEnd(exit, r.inst.Run != nil, r.spec().Restart)
	d := r.decision(kind, reason, inputs)
	if r.box != nil {
		d.Lines = r.box.LastLines(20)
	}
	r.inst.Exit = exit
	r.becomeFor(pando.PhaseFailed, d.Reason, &d)
}

// outgrownStopMax is how long a program that fills the disk may take to end. Its spec cannot raise
// it.
const outgrownStopMax = 2 * time.Second

// stopWrites makes an instance fail and ends its program, also while it stops in its own time.
func (r *Runner) stopWrites(why string) {
	r.fail(why, nil)
	box := r.box
	if box == nil || r.exited != nil {
		return
	}
	r.host.Spawn(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, outgrownStopMax)
		defer cancel()
		if err := box.Stop(ctx); err != nil && ctx.Err() == nil {
			r.host.Log.Error("end an instance that fills the disk", "instance", r.ID, "error", err)
		}
	})
}

// again logs the error of a step and returns the wait before its next attempt.
func (r *Runner) again(ctx context.Context, what string, err error) time.Duration {
	now := r.host.Clock.Now()
	if ctx.Err() == nil && (r.stuck != what || now.Sub(r.complained) >= time.Minute) {
		r.host.Log.Warn(what+": it is tried again", "instance", r.ID, "error", err)
		r.complained = now
	}
	if r.pause = min(2*r.pause, RetryWaitMax); r.stuck != what {
		r.stuck, r.pause = what, RetryWait
	}
	return r.pause
}

// decision returns a decision of this agent about the instance.
func (r *Runner) decision(
	kind pando.DecisionKind, reason string, inputs map[string]float64,
) pando.Decision {
	return r.host.Records.Decision(r.Status().Instance, kind, reason, inputs)
}

// decide records a decision about the instance. A failed write changes nothing.
func (r *Runner) decide(
	ctx context.Context, kind pando.DecisionKind, reason string, inputs map[string]float64,
) {
	r.host.Records.Decide(ctx, r.Status().Instance, kind, reason, inputs)
}

// PushState merges the instance's branch and records a decision for each conflict.
func (r *Runner) PushState(ctx context.Context) (pando.MergeResult, error) {
	result, err := r.host.Branches.Push(ctx, r.Service, r.ID)
	r.host.Tally.pushed(result, err)
	if err != nil {
		return result, err
	}
	for _, path := range result.Conflicts {
		r.decide(ctx, pando.DecidedConflict, "both versions of "+path+" were kept", nil)
	}
	return result, nil
}

// NewIntent returns a new intent of the instance.
func (r *Runner) NewIntent(verb pando.Verb, inputs map[string]float64) pando.Intent {
	return pando.Intent{
		ID: pando.IntentID(r.host.IDs.Sequential(r.host.Clock.Now())), Service: r.Service, Verb: verb,
		Host: r.host.Name, Inputs: inputs,
		By: pando.Asker{Kind: pando.AskerInstance, Name: string(r.ID)},
	}
}

// serve starts the API of the instance at its socket.
func (r *Runner) serve(box pando.Sandbox) {
	r.host.Spawn(func(ctx context.Context) {
		err := r.Caller.Serve(ctx, box.Listener(), r.host.Clock, r.host.Serve(r.ID))
		if err != nil && ctx.Err() == nil {
			r.host.Log.Debug("an instance's API ended", "instance", r.ID, "error", err)
		}
	})
}

// Status returns the status of the runner, with a step of control that the runner has not received
// yet.
func (r *Runner) Status() Status {
	r.host.Records.Lock()
	defer r.host.Records.Unlock()
	return r.StatusIn(r.host.Records.World)
}

// StatusIn is Status for a caller that has the world of the records, with their lock.
func (r *Runner) StatusIn(w *world.World) Status {
	now := r.Shown
	if v, ok := w.Instances[r.ID]; ok {
		now.Instance, _ = AfterControl(now.Instance, v.V)
	}
	return now
}

// Flush writes the steps of the instance that are not recorded yet.
func (r *Runner) Flush(ctx context.Context) error { return r.recorder.Flush(ctx) }

// Health returns the health of the instance in a phase, and its newest answers to probes.
func (r *Runner) Health(p pando.Phase) (pando.HealthState, []pando.ProbeAnswer) {
	return r.answers.of(p)
}

// Ended returns a channel that is closed when the runner has ended.
func (r *Runner) Ended() <-chan struct{} { return r.ended }

// explain records why an instance waits in its phase.
func (r *Runner) explain(reason string) {
	r.inst.Reason = reason
	r.recorder.Add(r.inst, nil)
	r.show()
}

// hears returns the address families by which an instance accepts. An error leaves those that were
// known.
func (r *Runner) hears(i pando.Instance) pando.Hearing {
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

// A step returns atOnce when the next step follows without a wait.
const atOnce = time.Microsecond
