package agent

import (
	"context"
	"fmt"
	"hash/fnv"
	"time"

	"pando.run/pando"
	"pando.run/pando/state"
	"pando.run/pando/world"
)

// runner takes one instance through its life on this host. It is an actor with one goroutine. It
// compares the record (wanted) with the sandbox (actual) and does the next step.
//
// inst is the newest truth: it has the agent's own steps before the registry has them. Control's
// two steps (placed, draining) arrive through see.
type runner struct {
	a       *Agent
	id      pando.InstanceID
	service pando.ServiceKey

	// The agent's lock guards these.
	inst   pando.Instance
	box    pando.Sandbox
	link   pando.Link // of box
	exited *pando.Exit
	over   bool // its record is gone
	ready  bool // the application reported that it is ready
	events *events
	asking *pando.Intent // its one outstanding request
	dieNow bool
	called int  // asks on their way that may claim it from the reserve
	begun  bool // its start took the prepared work, if there was any
	metric map[string]float64
	told   budget // as last sent

	branch *state.Branch
	// born is closed once the branch exists or failed to open. It is nil before the attempt.
	born     chan struct{}
	kicked   chan struct{}
	recorder *recorder
	pace     pace
	// spread, out of 1,024, scales the extra sixteenth of this runner's waits. The instances of a host
	// then do not all retry at one instant after an outage.
	spread time.Duration

	// Only the actor uses these.
	deadline    time.Time // of readiness, for the start that began at starting
	starting    time.Time
	connected   bool          // to the steering
	tried       time.Time     // the time of the last attempt to connect
	unconnected error         // the error of that attempt
	uncounted   time.Time     // since when its flows cannot be counted, or zero
	stuck       string        // the step that failed last
	pause       time.Duration // before its next attempt
	complained  time.Time
	probed      time.Time
	falls       int
	spared      bool // it stays although it does not answer, and that is recorded
	awake       bool // although it is in reserve
	wait        time.Duration
}

func newRunner(a *Agent, i pando.Instance, box pando.Sandbox) *runner {
	r := &runner{
		a: a, id: i.ID, service: i.Service, inst: i, box: box, events: newEvents(a.Clock.Now()),
		kicked: make(chan struct{}, 1),
	}
	if box != nil {
		r.link = box.Link()
	}
	r.recorder = newRecorder(r)
	name := fnv.New32a()
	_, _ = name.Write([]byte(i.ID)) // never fails
	r.spread = time.Duration(name.Sum32() % 1024)
	return r
}

// see applies control's write to the instance and reports whether it was new. The caller holds the
// agent's lock.
func (r *runner) see(v world.Versioned[pando.Instance]) bool {
	mine, theirs := r.inst.Phase, v.V.Phase
	switch {
	// The warm instance was claimed; the record is not an echo of its birth.
	case theirs == pando.PhasePlaced && mine == pando.PhaseWarm && !v.V.Warm,
		theirs == pando.PhaseDraining && mine.May(pando.PhaseDraining):
		was := r.inst
		r.inst = v.V
		r.inst.IP4, r.inst.IP6 = was.IP4, was.IP6
		if theirs == pando.PhaseDraining {
			kind := pando.EventHalted
			if r.inst.Walk {
				r.events.send(r.a.Clock.Now(), kind, map[string]string{"reason": v.V.Reason})
			}
		}
		r.kick()
		return true
	}
	return false
}

// end makes the runner end its instance after the record is gone. The caller holds the agent's
// lock.
func (r *runner) end() {
	if !r.over {
		r.over = true
		r.kick()
	}
}

func (r *runner) kick() {
	select {
	case r.kicked <- struct{}{}:
	default:
	}
}

// A step returns atOnce when the next step follows without a wait.
const atOnce = time.Microsecond

func (r *runner) run(ctx context.Context) {
	r.a.spawn(r.recorder.run)
	if r.box != nil {
		r.adopt(ctx)
	}
	var boxEvents <-chan pando.SandboxEvent
	for {
		if box := r.sandbox(); box != nil {
			boxEvents = box.Events()
		}
		var timer <-chan time.Time
		stop := func() {}
		switch again := r.step(ctx); {
		case again == atOnce:
			r.kick() // without a timer: the runtime draws the first of two that end at the same instant
		case again > 0:
			timer, stop = r.a.Clock.After(again + again/16*r.spread/1024)
		}
		if r.gone() {
			stop()
			return
		}
		if box := r.sandbox(); box != nil && boxEvents == nil {
			boxEvents = box.Events()
		}
		var e pando.SandboxEvent
		told, open := false, true
		select { // events of the program come first: a step that misses them is wasted
		case e, open = <-boxEvents:
			told = true
		default:
			select {
			case <-ctx.Done():
			case <-r.kicked:
			case <-timer:
			case e, open = <-boxEvents:
				told = true
			}
		}
		stop()
		switch {
		case ctx.Err() != nil:
			return
		case !open:
			boxEvents = nil
			r.detach()
		case told:
			r.heard(e)
		}
	}
}

// detach marks the program as ended when the sandbox closes its events.
func (r *runner) detach() {
	r.a.mu.Lock()
	defer r.a.mu.Unlock()
	if r.exited == nil && r.box != nil {
		r.exited = &pando.Exit{Code: -1}
	}
}

func (r *runner) sandbox() pando.Sandbox {
	r.a.mu.Lock()
	defer r.a.mu.Unlock()
	if r.exited != nil {
		return nil
	}
	return r.box
}

func (r *runner) gone() bool {
	r.a.mu.Lock()
	defer r.a.mu.Unlock()
	_, ok := r.a.runners[r.id]
	return !ok
}

func (r *runner) heard(e pando.SandboxEvent) {
	r.a.mu.Lock()
	defer r.a.mu.Unlock()
	switch e.Kind {
	case pando.SandboxNotified:
		r.ready = true
	case pando.SandboxExited:
		exit := e.Exit
		r.exited = &exit
		r.a.publish(r.service)
	}
}

// step does the next step and returns the wait before the next look (0: until the next change).
func (r *runner) step(ctx context.Context) time.Duration {
	r.a.steps.Add(1)
	r.a.mu.Lock()
	i, box, exited, over := r.inst, r.box, r.exited, r.over
	r.a.mu.Unlock()
	if over {
		return r.remove(ctx)
	}
	if exited != nil && !i.Phase.Leaving() && i.Phase != pando.PhaseFailed {
		r.fail(exitReason(*exited), exited)
		return time.Millisecond
	}
	if box != nil && exited == nil && !r.connected && (i.Phase.KeepsFlows() || i.Phase == pando.PhaseStarting) {
		r.connectAgain(ctx, i, box)
	}
	switch i.Phase {
	case pando.PhasePlaced:
		return r.start(ctx, i, box)
	case pando.PhaseStarting:
		return r.awaitReady(ctx, i, box)
	case pando.PhaseReady, pando.PhaseInRotation, pando.PhaseWarm:
		if box == nil {
			r.fail("its sandbox is gone: the host restarted", nil)
			return time.Millisecond
		}
		return r.live(ctx, i, box)
	case pando.PhaseDraining:
		return r.drain(ctx, i, box, exited)
	case pando.PhaseDrained:
		return r.leave(ctx, i, box, exited)
	case pando.PhaseFailed:
		// It does not answer, or never became ready. Its last commits still count.
		if box != nil && exited == nil {
			if err := box.Stop(ctx); err != nil {
				return r.again(ctx, "stop a failed instance", err)
			}
		}
		return r.salvage(ctx, i, "salvaged")
	case pando.PhaseMerged:
		return r.bury(ctx)
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
func (r *runner) become(p pando.Phase, reason string) {
	r.a.mu.Lock()
	defer r.a.mu.Unlock()
	r.becomeLocked(p, reason, nil)
}

func (r *runner) becomeLocked(p pando.Phase, reason string, because *pando.Decision) {
	if !r.inst.Phase.May(p) {
		return // control was faster; the next step sees the new record
	}
	r.inst = r.inst.Become(p, r.a.Clock.Now(), reason)
	r.recorder.add(r.inst, because)
	r.a.publish(r.service)
}

// adopt takes over a sandbox of a former agent, which may have died at any step. It connects the
// sandbox to steering, serves its API again and opens its branch.
func (r *runner) adopt(ctx context.Context) {
	r.a.mu.Lock()
	i, box := r.inst, r.box
	r.a.mu.Unlock()
	r.connect(ctx, i, box)
	r.awake = i.Phase == pando.PhaseWarm // an ask may have woken it, so assume that it is awake
	r.a.mu.Lock()
	r.inst.IP4, r.inst.IP6 = r.link.IP4, r.link.IP6
	if r.inst.Phase == pando.PhasePlaced {
		// The former agent started it and died before it recorded that.
		r.becomeLocked(pando.PhaseStarting, "found running after the agent restarted", nil)
	}
	i = r.inst
	r.a.mu.Unlock()
	r.bear()
	r.serve(box)
	r.sayAgain(i)
}

// sayAgain repeats the events of a leaving instance, because a former agent may have died before it
// sent them.
func (r *runner) sayAgain(i pando.Instance) {
	now := r.a.Clock.Now()
	if i.Phase.Leaving() && i.Walk {
		r.events.send(now, pando.EventHalted, map[string]string{"reason": i.Reason})
	}
	if i.Phase == pando.PhaseDrained {
		r.events.send(now, pando.EventDrained, map[string]string{"reason": i.Reason})
	}
}
