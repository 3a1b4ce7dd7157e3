package agent

import (
	"context"
	"fmt"
	"hash/fnv"
	"strings"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/events"
	"pando.run/pando/agent/records"
	"pando.run/pando/agent/socket"
	"pando.run/pando/lifecycle"
)

// runner takes one instance through its life on this host. It is an actor with one goroutine, which
// alone touches the fields of its life. Other goroutines send it messages, and it shows its status
// to the agent.
//
// A runner compares the record (wanted) with the sandbox (actual) and does the next step.
type runner struct {
	a       *Agent
	id      pando.InstanceID
	service pando.ServiceKey

	inbox    inbox
	shown    status        // as last shown; the agent's lock guards it
	ended    chan struct{} // closed when the runner has ended
	events   *events.Feed
	recorder *records.Recorder
	caller   socket.Caller
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
	enlisted  uint64 // the place in askReads.seq at which it began
	// met is when this agent got to know it, or its claim from the reserve, by the clock of this host.
	// The times that control wrote are of another clock.
	met   time.Time
	awake bool // although it is in reserve

	stuck      string        // the step that failed last
	pause      time.Duration // before its next attempt
	complained time.Time

	// The stages of the life, each with the state that is its own.
	wire    wire
	birth   birth
	renewal renewal
	config  reconfiguring
	watch   watch
	leave   leave
	end     end
}

func newRunner(a *Agent, i pando.Instance, box pando.Sandbox) *runner {
	r := &runner{
		a: a, id: i.ID, service: i.Service, events: events.New(a.Clock.Now()),
		inbox: inbox{filled: make(chan struct{}, 1)}, ended: make(chan struct{}),
		inst: i, box: box, inherited: box != nil || i.Phase != pando.PhasePlaced,
		enlisted: a.askReads.seq.Add(1), met: a.Clock.Now(),
	}
	if box != nil {
		r.link = box.Link()
	}
	r.shown = r.status()
	r.recorder = a.records.NewRecorder(i.ID)
	name := fnv.New32a()
	_, _ = name.Write([]byte(i.ID)) // never fails
	r.spread = time.Duration(name.Sum32() % 1024)
	return r
}

// post sends a message to the runner. It never waits.
func (r *runner) post(m message) { r.inbox.put(m) }

func (r *runner) status() status {
	return status{
		inst: r.inst, box: r.box, link: r.link, runs: r.box != nil && r.exited == nil, begun: r.begun,
		born:   r.born(),
		silent: r.silent,
	}
}

// born returns when the instance came to this host, by the clock of this host. Its record has the
// clock of control, which counts only if a former agent met the instance.
func (r *runner) born() time.Time {
	if r.inherited && r.inst.Born.Before(r.met) {
		return r.inst.Born
	}
	return r.met
}

// show sends the state of the runner to the agent.
func (r *runner) show() { r.a.crews.shown(r, r.status()) }

// A step returns atOnce when the next step follows without a wait.
const atOnce = time.Microsecond

func (r *runner) run(ctx context.Context) {
	defer close(r.ended)
	r.a.spawn(r.recorder.Run)
	if r.box != nil {
		r.adopt(ctx)
	}
	for {
		for _, m := range r.inbox.take() {
			r.receive(ctx, m)
		}
		again := r.step(ctx)
		if r.gone {
			return
		}
		r.rest(ctx, again)
		if ctx.Err() != nil {
			return
		}
	}
}

// rest waits for the next cause of a step: a message, an event of the program, the steering table,
// or the time that the last step asked for.
func (r *runner) rest(ctx context.Context, again time.Duration) {
	var program <-chan pando.SandboxEvent
	if r.box != nil && r.exited == nil {
		program = r.box.Events()
	}
	select { // events of the program come first: a step that misses them is wasted
	case e, open := <-program:
		r.programChanged(e, open)
		return
	default:
	}
	if again == atOnce {
		return
	}
	var timer <-chan time.Time
	stop := func() {}
	if again > 0 {
		timer, stop = r.a.Clock.After(again + again/16*r.spread/1024)
	}
	defer stop()
	select {
	case <-ctx.Done():
	case <-r.inbox.filled:
	case <-timer:
	case <-r.tableWake():
	case e, open := <-program:
		r.programChanged(e, open)
	}
}

// programChanged applies an event of the program. The sandbox closes its events when the program
// has ended.
func (r *runner) programChanged(e pando.SandboxEvent, open bool) {
	switch {
	case !open:
		r.exited = &pando.Exit{Code: -1}
	case e.Kind == pando.SandboxNotified:
		r.ready = true
	case e.Kind == pando.SandboxExited:
		r.exited = &e.Exit
	case e.Kind == pando.SandboxSilent:
		r.silent, r.before = e.Why, r.inst.Reason
		r.explain("its shim does not answer, and is asked again: " + e.Why)
	case e.Kind == pando.SandboxAnswers:
		said := strings.HasSuffix(r.inst.Reason, r.silent)
		if r.silent = ""; said {
			r.explain(r.before)
		}
	}
	r.show()
}

// receive applies a message.
func (r *runner) receive(ctx context.Context, m message) {
	switch m := m.(type) {
	case recordChanged:
		r.follow(m.inst)
	case recordGone:
		r.over = true
	case recordOld:
		r.recorder.Add(r.inst, nil)
	case readyReported:
		r.ready = true
	case called:
		r.called += m.by
	case leads:
		r.lead(m.term)
	case stopEnded:
		r.leave.stopping, r.leave.stopped = false, true
		if m.err != nil && ctx.Err() == nil {
			r.a.Log.Error("stop an instance", "instance", r.id, "error", m.err)
		}
	case imagePulled:
		r.birth.fetching.done, r.birth.fetching.err = true, m.err
	case imageWaits:
		if !r.birth.fetching.done && r.inst.Phase == pando.PhasePlaced {
			r.explainFetch(m.what)
		}
	case outgrown:
		r.stopWrites(m.why)
	case seedTaken:
		r.birth.seeding.sowing = false
	case hookEnded:
		r.endRecoverHook(ctx, m)
	case secretsChanged:
		r.renew()
		r.reconfigure()
	case configsChanged:
		r.config.retries = r.config.retries && !m.retry
		r.reconfigure()
	case configsBrought:
		r.reconfigured(ctx, m.outcome)
	case secretsBrought:
		r.renewed(ctx, m)
	case departs:
		r.a.departures.mark(r, m)
	case stays:
		r.a.departures.clear(r)
	case resumed:
		r.moving = false
	case flowsCounted:
		r.noteCount(ctx, m)
	case deathAsked:
		m.answer <- r.die(ctx, m)
	}
}

// follow applies control's write to the instance.
func (r *runner) follow(theirs pando.Instance) {
	now, fresh := controlled(r.inst, theirs)
	if !fresh {
		return
	}
	drains := r.inst.Phase == pando.PhaseDraining
	r.inst = now
	if now.Phase == pando.PhasePlaced {
		r.met = r.a.Clock.Now()
	}
	if !drains && now.Phase == pando.PhaseDraining && now.Walk {
		r.events.Send(r.a.Clock.Now(), pando.EventHalted, map[string]string{"reason": now.Reason})
	}
	r.show()
}

// step does the next step and returns the wait before the next look (0: until the next change).
func (r *runner) step(ctx context.Context) time.Duration {
	r.a.steps.Add(1)
	i, box := r.inst, r.box
	switch {
	case r.leave.stopping:
		return 0 // stopEnded wakes it
	case r.over:
		return r.removeAll(ctx)
	case r.moving:
		return 0 // resumed wakes it
	case r.exited != nil && !i.Phase.Leaving() && i.Phase != pando.PhaseFailed:
		r.fail(exitReason(*r.exited), r.exited)
		return time.Millisecond
	}
	steered := i.Phase.KeepsFlows() || i.Phase == pando.PhaseStarting
	if box != nil && r.exited == nil && !r.wire.connected && steered {
		r.connectAgain(ctx, i, box)
	}
	switch i.Phase {
	case pando.PhasePlaced:
		return r.startInstance(ctx, i, box)
	case pando.PhaseStarting:
		return r.awaitReady(ctx, i, box)
	case pando.PhaseReady, pando.PhaseInRotation, pando.PhaseWarm:
		if box == nil {
			r.fail("its sandbox is gone: the host restarted", nil)
			return time.Millisecond
		}
		return r.watchHealth(ctx, i, box)
	case pando.PhaseDraining:
		return r.drain(ctx, i, box)
	case pando.PhaseDrained:
		return r.awaitDeath(ctx, i, box)
	case pando.PhaseFailed:
		// It does not answer, or never became ready. Its last commits still count.
		if box != nil && r.exited == nil {
			if err := box.Stop(ctx); err != nil {
				return r.again(ctx, "stop a failed instance", err)
			}
		}
		return r.salvage(ctx, i, "salvaged")
	case pando.PhaseMerged:
		return r.recordEnd(ctx)
	}
	return 0
}

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
func (r *runner) become(p pando.Phase, reason string) { r.becomeFor(p, reason, nil) }

// becomeFor moves the instance to its next phase and records the decision with it.
func (r *runner) becomeFor(p pando.Phase, reason string, because *pando.Decision) {
	r.inst = r.inst.Become(p, r.a.Clock.Now(), reason)
	r.endTableWait()
	r.recorder.Add(r.inst, because)
	r.show()
}

// adopt takes over a sandbox of a former agent, which may have died at any step. It connects the
// sandbox to steering, serves its API again and opens its branch.
func (r *runner) adopt(ctx context.Context) {
	if r.inst.Phase == pando.PhasePlaced && r.inst.Start == pando.StartRecover {
		r.end.left, r.box, r.link = r.box, nil, pando.Link{} // its hook runs, without a reader
		if err := r.end.left.Remove(ctx); err == nil {
			r.end.left = nil
		}
		r.show()
		return
	}
	r.connect(ctx, r.inst, r.box)
	r.awake = r.inst.Phase == pando.PhaseWarm // an ask may have woken it, so assume that it is awake
	r.inst.IP4, r.inst.IP6 = r.link.IP4, r.link.IP6
	if r.inst.Phase == pando.PhasePlaced {
		// The former agent started it and died before it recorded that.
		r.become(pando.PhaseStarting, "found running after the agent restarted")
	}
	r.a.departures.proceed(ctx, r)
	r.show()
	r.createBranch()
	r.serve(r.box)
	r.a.crews.follow(r, r.spec())
	r.reconfigure()
	r.repeatEvents(r.inst)
}

// repeatEvents sends the events of a leaving instance again, because a former agent may have died
// before it sent them.
func (r *runner) repeatEvents(i pando.Instance) {
	now := r.a.Clock.Now()
	if i.Phase.Leaving() && i.Walk {
		r.events.Send(now, pando.EventHalted, map[string]string{"reason": i.Reason})
	}
	if i.Phase == pando.PhaseDrained {
		r.sendDrained(i.Reason)
	}
}

// spec returns the spec by which the instance runs.
func (r *runner) spec() pando.Spec {
	_, spec := r.described(r.inst)
	return spec
}

// described returns the record of the service, and the spec by which an instance runs.
func (r *runner) described(i pando.Instance) (pando.Service, pando.Spec) {
	svc, spec := r.a.records.Service(r.service, i.Revision)
	if i.Run != nil {
		spec = spec.ForRun(*i.Run)
	}
	return svc, spec
}

// probe asks a probe of the spec once, and keeps the answer.
func (r *runner) probe(
	ctx context.Context, p pando.Probe, limitSeconds float64, spec pando.Spec, box pando.Sandbox,
) error {
	ctx, cancel := context.WithTimeout(ctx, pando.Seconds(limitSeconds))
	defer cancel()
	err := r.a.Prober.Probe(ctx, p, box, spec.ProbePort(p))
	r.answers.note(r.a.Clock.Now(), p.Kind, err)
	return err
}

// fail takes the instance out of rotation at once and records a decision with the evidence.
func (r *runner) fail(reason string, exit *pando.Exit) {
	if !r.inst.Phase.May(pando.PhaseFailed) {
		return
	}
	r.rejectSeed(reason)
	inputs := map[string]float64{}
	if exit != nil && exit.Signal == "" {
		inputs[lifecycle.ExitCode] = float64(exit.Code)
	}
	if i := r.inst; i.Phase == pando.PhaseInRotation { // this host wrote Since
		if served := r.a.Clock.Now().Sub(i.Since); served > 0 {
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

// outgrownStopMax is how long a program may take to end that fills the disk, whatever its spec
// says.
const outgrownStopMax = 2 * time.Second

// stopWrites makes an instance fail and ends its program, also while it stops in its own time.
func (r *runner) stopWrites(why string) {
	r.fail(why, nil)
	box := r.box
	if box == nil || r.exited != nil {
		return
	}
	r.a.spawn(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, outgrownStopMax)
		defer cancel()
		if err := box.Stop(ctx); err != nil && ctx.Err() == nil {
			r.a.Log.Error("end an instance that fills the disk", "instance", r.id, "error", err)
		}
	})
}

// again logs the error of a step and returns the wait before its next attempt.
func (r *runner) again(ctx context.Context, what string, err error) time.Duration {
	now := r.a.Clock.Now()
	if ctx.Err() == nil && (r.stuck != what || now.Sub(r.complained) >= time.Minute) {
		r.a.Log.Warn(what+": it is tried again", "instance", r.id, "error", err)
		r.complained = now
	}
	if r.pause = min(2*r.pause, retryWaitMax); r.stuck != what {
		r.stuck, r.pause = what, retryWait
	}
	return r.pause
}

// decision returns a decision of this agent about the instance.
func (r *runner) decision(
	kind pando.DecisionKind, reason string, inputs map[string]float64,
) pando.Decision {
	return r.a.records.Decision(r.a.crews.statusOf(r).inst, kind, reason, inputs)
}

// decide records a decision about the instance. A failed write changes nothing.
func (r *runner) decide(
	ctx context.Context, kind pando.DecisionKind, reason string, inputs map[string]float64,
) {
	r.a.records.Decide(ctx, r.a.crews.statusOf(r).inst, kind, reason, inputs)
}

// push merges the instance's branch and records a decision for each conflict.
func (r *runner) push(ctx context.Context) (pando.MergeResult, error) {
	result, err := r.a.branches.Push(ctx, r.service, r.id)
	r.a.tally.pushed(result, err)
	if err != nil {
		return result, err
	}
	for _, path := range result.Conflicts {
		r.decide(ctx, pando.DecidedConflict, "both versions of "+path+" were kept", nil)
	}
	return result, nil
}

// newIntent returns a new intent of the instance.
func (r *runner) newIntent(verb pando.Verb, inputs map[string]float64) pando.Intent {
	return pando.Intent{
		ID: pando.IntentID(r.a.IDs.Sequential(r.a.Clock.Now())), Service: r.service, Verb: verb,
		Host: r.a.Host.Name, Inputs: inputs,
		By: pando.Asker{Kind: pando.AskerInstance, Name: string(r.id)},
	}
}

// serve starts the API of the instance at its socket.
func (r *runner) serve(box pando.Sandbox) {
	r.a.spawn(func(ctx context.Context) {
		err := r.caller.Serve(ctx, box.Listener(), r.a.Clock, r.a.Serve(r.a.self, r.id))
		if err != nil && ctx.Err() == nil {
			r.a.Log.Debug("an instance's API ended", "instance", r.id, "error", err)
		}
	})
}
