package runner

import (
	"context"
	"fmt"
	"time"

	"pando.run/pando"
)

// depart stops the steps of the instance for a move.
func (r *Runner) depart(q departs) {
	switch {
	case r.box == nil || r.exited != nil || !r.inst.Phase.TakesFlows():
		q.answer <- fmt.Errorf("%w: instance %s is %s", pando.ErrConflict, r.ID, r.inst.Phase)
		return
	case r.moving:
		q.answer <- fmt.Errorf("%w: instance %s moves already", pando.ErrConflict, r.ID)
		return
	}
	mark := q.move.MoveMark
	r.moving, r.inst.Move = true, &mark
	r.host.Agent.Departs(r.ID, q.move)
	r.recorder.Add(r.inst, nil)
	r.show()
	q.answer <- nil
}

// stay takes the mark of a move away.
func (r *Runner) stay() {
	r.inst.Move = nil
	r.host.Agent.Stays(r.ID)
	r.recorder.Add(r.inst, nil)
	r.show()
}

// proceed continues the program of a sandbox that this runner takes over. A former agent may have
// died during a snapshot or a move, or another host has sent the program.
func (r *Runner) proceed(ctx context.Context) {
	m, came := r.box.Arriving()
	switch {
	case r.inst.Phase == pando.PhaseWarm:
		return
	case r.inst.Move != nil:
		r.moving = true
		r.host.Agent.KeepHere(r, *r.inst.Move)
		return
	}
	if err := r.box.Resume(ctx); err != nil {
		r.host.Log.Warn("resume an instance", "instance", r.ID, "error", err)
	}
	if came {
		r.host.Agent.Landed(r, m)
	}
}

// hookWait is how long a program has between the event `snapshot` and its freeze.
const hookWait = 50 * time.Millisecond

// AnnounceSnapshot sends the event `snapshot` and closes the program's connections to its socket. A
// program with such a connection has hookWait to answer.
func (r *Runner) AnnounceSnapshot(ctx context.Context) error {
	r.Events.Send(r.host.Clock.Now(), pando.EventSnapshot, nil)
	if r.Events.Listeners() > 0 {
		if err := pando.Sleep(ctx, r.host.Clock, hookWait); err != nil {
			return err
		}
	}
	if r.Caller.HangUp() > 0 {
		return pando.Sleep(ctx, r.host.Clock, hookWait)
	}
	return nil
}
