package runner

import (
	"context"
	"strings"
	"time"

	"pando.run/pando"
)

// Run takes the instance through its life until it has ended, or ctx ends.
func (r *Runner) Run(ctx context.Context) {
	defer close(r.ended)
	r.host.Spawn(r.recorder.Run)
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
func (r *Runner) rest(ctx context.Context, again time.Duration) {
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
		timer, stop = r.host.Clock.After(again + again/16*r.spread/1024)
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
func (r *Runner) programChanged(e pando.SandboxEvent, open bool) {
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
func (r *Runner) receive(ctx context.Context, m message) {
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
			r.host.Log.Error("stop an instance", "instance", r.ID, "error", m.err)
		}
	case imagePulled:
		r.start.fetching.done, r.start.fetching.err = true, m.err
	case imageWaits:
		if !r.start.fetching.done && r.inst.Phase == pando.PhasePlaced {
			r.explainFetch(m.what)
		}
	case outgrown:
		r.stopWrites(m.why)
	case seedTaken:
		r.start.seeding.storing = false
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
		r.depart(m)
	case stays:
		r.stay()
	case resumed:
		r.moving = false
	case flowsCounted:
		r.noteCount(ctx, m)
	case deathAsked:
		m.answer <- r.die(ctx, m)
	}
}

// follow applies control's write to the instance.
func (r *Runner) follow(theirs pando.Instance) {
	now, fresh := AfterControl(r.inst, theirs)
	if !fresh {
		return
	}
	drains := r.inst.Phase == pando.PhaseDraining
	r.inst = now
	if now.Phase == pando.PhasePlaced {
		r.met = r.host.Clock.Now()
	}
	if !drains && now.Phase == pando.PhaseDraining && now.Walk {
		r.Events.Send(r.host.Clock.Now(), pando.EventHalted, map[string]string{"reason": now.Reason})
	}
	r.show()
}

// step does the next step and returns the wait before the next look (0: until the next change).
func (r *Runner) step(ctx context.Context) time.Duration {
	r.host.Tally.Steps.Add(1)
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

// adopt takes over a sandbox of a former agent, which may have died at any step. It connects the
// sandbox to steering, serves its API again and opens its branch.
func (r *Runner) adopt(ctx context.Context) {
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
	r.proceed(ctx)
	r.show()
	r.createBranch()
	r.serve(r.box)
	r.host.Agent.FollowSources(r, r.spec())
	r.reconfigure()
	r.repeatEvents(r.inst)
}

// repeatEvents sends the events of a leaving instance again, because a former agent may have died
// before it sent them.
func (r *Runner) repeatEvents(i pando.Instance) {
	now := r.host.Clock.Now()
	if i.Phase.Leaving() && i.Walk {
		r.Events.Send(now, pando.EventHalted, map[string]string{"reason": i.Reason})
	}
	if i.Phase == pando.PhaseDrained {
		r.sendDrained(i.Reason)
	}
}
