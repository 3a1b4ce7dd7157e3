package agent

import (
	"context"
	"fmt"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/flows"
	"pando.run/pando/spec/span"
)

// These times govern how an instance leaves.
const (
	// countWaitMax is how long a drain waits while its flows cannot be counted. Then the instance
	// counts as drained.
	countWaitMax = 30 * time.Second
	// The wait between two attempts at a failing step. It doubles after each failure.
	retryWait    = 200 * time.Millisecond
	retryWaitMax = 2 * time.Second
	// dieGrace is how long a drained instance that halted itself may take to merge and die. After that
	// the agent stops it and merges its state.
	dieGrace = 30 * time.Second
	// drainedAgain is the wait between two events drained for a program that does not die. Its
	// listener may have read the first one before the answer of its halt.
	drainedAgain = 2 * time.Second
)

// leave takes an instance out: it waits for its flows and for its program.
type leave struct {
	ordered   time.Time // when this agent learned that it leaves, or zero
	counting  flows.Schedule
	uncounted time.Time // since when its flows cannot be counted, or zero
	unknown   error     // why they cannot be counted
	closed    time.Time // since when no new flow reaches it, or zero
	waiting   waiting
	stopping  bool      // its sandbox is being stopped
	stopped   bool      // it was
	said      time.Time // when the event drained was last sent, or zero
}

// drain waits until the last flow ends or a bound of the drain is reached.
func (r *runner) drain(ctx context.Context, i pando.Instance, box pando.Sandbox) time.Duration {
	now := r.a.Clock.Now()
	if r.leave.ordered.IsZero() {
		r.leave.ordered = now
		if was := r.inst.Ordered; !was.IsZero() && was.Before(now) { // the agent starts again
			r.leave.ordered = was
		}
	}
	if box == nil || r.exited != nil {
		r.endDrain("the program is not there any more")
		return atOnce
	}
	if i.Warm || i.Run != nil {
		r.endDrain("it never took a flow")
		return atOnce
	}
	steered, unsteered := r.tableInForce()
	if !steered && unsteered == nil {
		return retryWait // new flows may still come: the table wakes it
	}
	if steered && r.leave.closed.IsZero() {
		r.leave.closed = now
		r.leave.counting.CountAgain()
	}
	spent := now.Sub(r.leave.ordered)
	if r.leave.counting.Proven && r.leave.counting.Flows == 0 {
		r.endDrain(fmt.Sprintf("its last flow ended after %s", spent.Round(time.Millisecond)))
		return atOnce
	}
	r.recount(ctx, box, now)
	look := min(r.leave.counting.UntilLook(now, spent), r.reportWait(ctx, box, now))
	for _, end := range r.drainEnds(i) {
		left := end.at.Sub(now)
		if left <= 0 {
			ended := r.endedText(ctx, box)
			r.decide(ctx, pando.DecidedDrainEnd, end.why+": "+ended,
				map[string]float64{"flows": float64(r.leave.counting.Flows)})
			r.endDrain(end.why + ", " + ended)
			return atOnce
		}
		look = min(look, left)
	}
	return look
}

// recount asks for a count of the instance's flows if one is due. The number of the last count
// holds until then.
func (r *runner) recount(ctx context.Context, box pando.Sandbox, now time.Time) {
	ends, err := r.a.Steering.Ends(ctx, r.service, r.id)
	if err != nil {
		ends = r.leave.counting.Ends // the sockets know
	}
	wait, prompt := r.leave.counting.UntilCount(now, ends)
	if wait > 0 || r.leave.counting.Asked {
		return
	}
	r.leave.counting.Asked = true
	r.a.counts.Queue(flows.Ask{Instance: r.id, Box: box,
		Answer: func(n flows.Count) { r.post(flowsCounted{n}) }}, prompt)
}

// noteCount applies the result of a count. A count from before the table without the instance
// proves nothing, because new flows came. Neither does a count of zero without that table.
func (r *runner) noteCount(ctx context.Context, m flowsCounted) {
	now := r.a.Clock.Now()
	r.leave.counting.Note(now, m.count)
	r.leave.counting.Proven = m.count.Err == nil && !r.leave.closed.IsZero() && !m.count.Began.Before(r.leave.closed)
	if !r.leave.closed.IsZero() && m.count.Began.Before(r.leave.closed) {
		r.leave.counting.CountAgain()
	}
	err := m.count.Err
	if _, unsteered := r.tableInForce(); err == nil && m.count.Flows == 0 {
		err = unsteered
	}
	switch {
	case err == nil:
		r.leave.uncounted, r.leave.unknown = time.Time{}, nil
	case ctx.Err() != nil || !r.inst.Phase.Leaving():
	case r.leave.uncounted.IsZero():
		r.leave.uncounted = now
		r.a.Log.Warn("the flows of a draining instance cannot be counted; it is tried again",
			"instance", r.id, "error", err)
		fallthrough
	default:
		r.leave.unknown = err
	}
}

// drainEnd is a time at which a drain ends although flows are left, with the reason.
type drainEnd struct {
	at  time.Time
	why string
}

// drainEnds returns the bounds of a drain. That of the spec runs from the moment at which this
// agent learned of the order, by its own clock: the clock of the host that gave the order may be
// off.
func (r *runner) drainEnds(i pando.Instance) (ends []drainEnd) {
	end := func(at time.Time, format string, about ...any) {
		ends = append(ends, drainEnd{at, fmt.Sprintf(format, about...)})
	}
	if leaveBy := r.a.leavesBy(); !leaveBy.IsZero() {
		end(leaveBy, "its host leaves")
	}
	if limit := r.spec().DrainSecondsMax; limit > 0 {
		end(r.leave.ordered.Add(pando.Seconds(limit)), "drain_max of %s was over", span.Seconds(limit))
	}
	if i.EndNow {
		end(r.leave.ordered, "an operator ended the drain")
	}
	if i.Walk && i.Halt == "" { // it did not answer, and this host wrote Since (takeOut)
		end(i.Since.Add(unwellDrainMax), "it does not answer, and %s were over", unwellDrainMax)
	}
	if r.leave.unknown != nil {
		end(r.leave.uncounted.Add(countWaitMax),
			"its flows could not be counted for %s (%v)", countWaitMax, r.leave.unknown)
	}
	return ends
}

func (r *runner) endDrain(reason string) {
	r.become(pando.PhaseDrained, reason)
	r.sendDrained(reason)
}

// sendDrained sends the event drained.
func (r *runner) sendDrained(reason string) {
	r.leave.said = r.a.Clock.Now()
	r.events.Send(r.leave.said, pando.EventDrained, map[string]string{"reason": reason})
}

// awaitDeath waits for the application to merge and die. It stops the application after a grace
// period, or at once if another party took the instance out and the program reads no events. Then
// it merges the state for the instance. It repeats the event drained as long as it waits.
func (r *runner) awaitDeath(ctx context.Context, i pando.Instance, box pando.Sandbox) time.Duration {
	if box != nil && r.exited == nil && !r.leave.stopped {
		if wait := r.patience(i); wait > 0 {
			if r.a.Clock.Now().Sub(r.leave.said) >= drainedAgain {
				r.sendDrained(i.Reason)
			}
			return min(wait, drainedAgain)
		}
		r.stopProgram(box)
		return 0
	}
	return r.salvage(ctx, i, "merged for it after it stopped")
}

// stopProgram stops the program in a goroutine of its own, because a program that stops may still
// call its API. The message stopEnded reports the end.
func (r *runner) stopProgram(box pando.Sandbox) {
	r.leave.stopping = true
	warm := r.inst.Warm
	r.a.spawn(func(ctx context.Context) {
		if warm {
			if err := box.Resume(ctx); err != nil {
				r.a.Log.Warn("wake a reserve so that it can stop", "instance", r.id, "error", err)
			}
		}
		r.post(stopEnded{box.Stop(ctx)})
	})
}

// patience returns how much longer a drained instance may take to die by itself.
func (r *runner) patience(i pando.Instance) time.Duration {
	if !i.Walk {
		return dieGrace - r.a.Clock.Now().Sub(i.Since)
	}
	if r.events.Listeners() == 0 {
		return 0
	}
	// It reads its events, so it has received the order. Give it the time of a stop to end by itself.
	return pando.Seconds(r.spec().StopSeconds) - r.a.Clock.Now().Sub(i.Since)
}
