package agent

import (
	"context"
	"fmt"
	"time"

	"pando.run/pando"
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
)

// leave takes an instance out: it waits for its flows and for its program.
type leave struct {
	*runner
	counting  counting
	uncounted time.Time // since when its flows cannot be counted, or zero
	closed    time.Time // since when no new flow reaches it, or zero
	stopping  bool      // its sandbox is being stopped
	stopped   bool      // it was
}

// drain waits until the last flow ends or a bound of the drain is reached.
func (r *leave) drain(ctx context.Context, i pando.Instance, box pando.Sandbox) time.Duration {
	now := r.a.Clock.Now()
	if box == nil || r.exited != nil {
		r.drained("the program is not there any more")
		return atOnce
	}
	if i.Warm || i.Run != nil {
		r.drained("it never took a flow")
		return atOnce
	}
	steered, err := r.wire.inForce()
	if !steered && err == nil {
		return retryWait // new flows may still come: the table wakes it
	}
	if r.closed.IsZero() {
		r.closed = now
	}
	spent := now.Sub(i.Since)
	n, rest, err := r.count(ctx, box, err)
	if err == nil && n == 0 && rest == 0 {
		r.drained(fmt.Sprintf("its last flow ended after %s", spent.Round(time.Millisecond)))
		return atOnce
	}
	look := max(rest, r.counting.look(now, spent))
	for _, end := range r.drainEnds(i, err) {
		left := end.at.Sub(now)
		if left <= 0 {
			r.a.decide(ctx, r.runner, pando.DecidedDrainEnd,
				fmt.Sprintf("%s: %d flows were ended", end.why, n), map[string]float64{"flows": float64(n)})
			r.drained(fmt.Sprintf("%s, %d flows were ended", end.why, n))
			return atOnce
		}
		look = min(look, left)
	}
	return look
}

// count returns the number of the instance's flows. It is that of the last count if none has ended
// since. rest is the time until another count may begin.
func (r *leave) count(
	ctx context.Context, box pando.Sandbox, unsteered error,
) (n int, rest time.Duration, err error) {
	now := r.a.Clock.Now()
	ends, err := r.a.Steering.Ends(ctx, r.service, r.id)
	if err != nil {
		ends = r.counting.ends // the sockets know
	}
	if r.counting.due(now, ends) > 0 {
		return r.counting.flows, 0, nil
	}
	if rest = r.a.sweeper.counts.wait(now); rest > 0 && !r.counting.counted.IsZero() {
		return r.counting.flows, rest, nil
	}
	worked := r.a.sweeper.worked()
	n, known, err := r.flows(ctx, box, unsteered)
	end := r.a.Clock.Now()
	// A busy machine makes a count long, and not dear.
	r.a.sweeper.counts.spend(end, min(end.Sub(now), r.a.sweeper.worked()-worked))
	r.counting.note(end, n, err)
	if err == nil && !known {
		rest = max(r.a.sweeper.counts.wait(end), drainLookMin)
	}
	return n, rest, err
}

// flows counts the flows of the instance: its own sockets, or if it has none, its entries in the
// connection table. unsteered is the error of the table without the instance. A count of zero has
// no meaning while new flows come. known is false for a count of zero from before that time.
func (r *leave) flows(
	ctx context.Context, box pando.Sandbox, unsteered error,
) (n int, known bool, err error) {
	n, err = box.Flows(ctx)
	known = true
	if err == nil && n == 0 {
		n, known, err = r.a.sweeper.flows(ctx, r.id, r.closed)
	}
	if err == nil && n == 0 {
		err = unsteered
	}
	switch {
	case err == nil:
		r.uncounted = time.Time{}
	case ctx.Err() == nil && r.uncounted.IsZero():
		r.uncounted = r.a.Clock.Now()
		r.a.Log.Warn("the flows of a draining instance cannot be counted; it is tried again",
			"instance", r.id, "error", err)
	}
	return n, known, err
}

// drainEnd is a time at which a drain ends although flows are left, with the reason.
type drainEnd struct {
	at  time.Time
	why string
}

// drainEnds returns the bounds of a drain. uncounted is the error of the last count of its flows.
func (r *leave) drainEnds(i pando.Instance, uncounted error) (ends []drainEnd) {
	end := func(at time.Time, format string, about ...any) {
		ends = append(ends, drainEnd{at, fmt.Sprintf(format, about...)})
	}
	if leaveBy := r.a.leavesBy(); !leaveBy.IsZero() {
		end(leaveBy, "its host leaves")
	}
	if limit := r.spec().DrainSecondsMax; limit > 0 {
		end(i.Since.Add(pando.Seconds(limit)), "drain_max of %gs was over", limit)
	}
	if i.Walk && i.Halt == "" { // it did not answer (takeOut)
		end(i.Since.Add(unwellDrainMax), "it does not answer, and %s were over", unwellDrainMax)
	}
	if uncounted != nil {
		end(r.uncounted.Add(countWaitMax),
			"its flows could not be counted for %s (%v)", countWaitMax, uncounted)
	}
	return ends
}

func (r *leave) drained(reason string) {
	r.become(pando.PhaseDrained, reason)
	r.events.send(r.a.Clock.Now(), pando.EventDrained, map[string]string{"reason": reason})
}

// await waits for the application to merge and die. It stops the application after a grace period,
// or at once if another party took the instance out and the program reads no events. Then it merges
// the state for the instance.
func (r *leave) await(ctx context.Context, i pando.Instance, box pando.Sandbox) time.Duration {
	if box != nil && r.exited == nil && !r.stopped {
		if wait := r.patience(i); wait > 0 {
			return wait
		}
		r.stop(box)
		return 0
	}
	return r.end.salvage(ctx, i, "merged for it after it stopped")
}

// stop stops the program in a goroutine of its own, because a program that stops may still call its
// API. The message stopEnded reports the end.
func (r *leave) stop(box pando.Sandbox) {
	r.stopping = true
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
func (r *leave) patience(i pando.Instance) time.Duration {
	if !i.Walk {
		return dieGrace - r.a.Clock.Now().Sub(i.Since)
	}
	if r.events.listeners() == 0 {
		return 0
	}
	// It reads its events, so it has received the order. Give it the time of a stop to end by itself.
	return pando.Seconds(r.spec().StopSeconds) - r.a.Clock.Now().Sub(i.Since)
}
