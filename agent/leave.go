package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pando.run/pando"
	"pando.run/pando/failpoint"
)

// These times govern how an instance leaves.
const (
	// A draining instance's flows are counted after each fiftieth of the time that it has drained,
	// within these bounds. A short drain is noticed at once. A connection that stays for a day costs
	// one count per second.
	drainLookMin = 10 * time.Millisecond
	drainLookMax = time.Second
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

// drain waits until the last flow ends or a bound of the drain is reached.
func (r *runner) drain(ctx context.Context, i pando.Instance, box pando.Sandbox, exited *pando.Exit) time.Duration {
	now := r.a.Clock.Now()
	if box == nil || exited != nil {
		r.drained("the program is not there any more")
		return atOnce
	}
	if i.Warm {
		r.drained("it never took a flow")
		return atOnce
	}
	spent := now.Sub(i.Since)
	n, err := r.flows(ctx, box)
	if err == nil && n == 0 {
		r.drained(fmt.Sprintf("its last flow ended after %s", spent.Round(time.Millisecond)))
		return atOnce
	}
	look := min(max(spent/50, drainLookMin), drainLookMax)
	for _, end := range r.drainEnds(i, err) {
		left := end.at.Sub(now)
		if left <= 0 {
			r.decide(ctx, pando.DecidedDrainEnd, fmt.Sprintf("%s: %d flows were ended", end.why, n), map[string]float64{"flows": float64(n)})
			r.drained(fmt.Sprintf("%s, %d flows were ended", end.why, n))
			return atOnce
		}
		look = min(look, left)
	}
	return look
}

// flows counts the flows of the instance: its own sockets, or if it has none, its entries in the
// connection table.
func (r *runner) flows(ctx context.Context, box pando.Sandbox) (int, error) {
	n, err := box.Flows(ctx)
	if err == nil && n == 0 {
		n, err = r.a.flows(ctx, r.id)
	}
	switch {
	case err == nil:
		r.uncounted = time.Time{}
	case ctx.Err() == nil && r.uncounted.IsZero():
		r.uncounted = r.a.Clock.Now()
		r.a.Log.Warn("the flows of a draining instance cannot be counted; it is tried again", "instance", r.id, "error", err)
	}
	return n, err
}

// drainEnd is a time at which a drain ends although flows are left, with the reason.
type drainEnd struct {
	at  time.Time
	why string
}

// drainEnds returns the bounds of a drain. uncounted is the error of the last count of its flows.
func (r *runner) drainEnds(i pando.Instance, uncounted error) (ends []drainEnd) {
	r.a.mu.Lock()
	leaveBy, limit := r.a.leaveBy, r.a.specOf(i).DrainSecondsMax
	r.a.mu.Unlock()
	if !leaveBy.IsZero() {
		ends = append(ends, drainEnd{leaveBy, "its host leaves"})
	}
	if limit > 0 {
		ends = append(ends, drainEnd{i.Since.Add(pando.Seconds(limit)), fmt.Sprintf("drain_max of %gs was over", limit)})
	}
	if i.Walk && i.Halt == "" { // it did not answer (takeOut)
		ends = append(ends, drainEnd{i.Since.Add(unwellDrainMax), fmt.Sprintf("it does not answer, and %s were over", unwellDrainMax)})
	}
	if uncounted != nil {
		ends = append(ends, drainEnd{
			r.uncounted.Add(countWaitMax), fmt.Sprintf("its flows could not be counted for %s (%v)", countWaitMax, uncounted),
		})
	}
	return ends
}

func (r *runner) drained(reason string) {
	r.become(pando.PhaseDrained, reason)
	r.events.send(r.a.Clock.Now(), pando.EventDrained, map[string]string{"reason": reason})
}

// leave waits for the application to merge and die. It stops the application after a grace period,
// or at once if another party took the instance out and the program reads no events. Then it merges
// the state for the instance.
func (r *runner) leave(ctx context.Context, i pando.Instance, box pando.Sandbox, exited *pando.Exit) time.Duration {
	r.a.mu.Lock()
	die := r.dieNow
	r.a.mu.Unlock()
	if die {
		return 0 // Die writes the next step
	}
	running := box != nil && exited == nil
	if wait := r.patience(i); running && wait > 0 {
		return wait
	}
	if running {
		if i.Warm {
			if err := box.Resume(ctx); err != nil {
				r.a.Log.Warn("wake a reserve so that it can stop", "instance", r.id, "error", err)
			}
		}
		if err := box.Stop(ctx); err != nil && ctx.Err() == nil {
			r.a.Log.Error("stop an instance", "instance", r.id, "error", err)
		}
	}
	return r.salvage(ctx, i, "merged for it after it stopped")
}

// patience returns how much longer a drained instance may take to die by itself.
func (r *runner) patience(i pando.Instance) time.Duration {
	if !i.Walk {
		return dieGrace - r.a.Clock.Now().Sub(i.Since)
	}
	r.a.mu.Lock()
	listens := r.events.listeners() > 0
	r.a.mu.Unlock()
	if !listens {
		return 0
	}
	// It reads its events, so it has received the order. Give it the time of a stop to end by itself.
	return pando.Seconds(r.spec(i).StopSeconds) - r.a.Clock.Now().Sub(i.Since)
}

// salvage merges the branch of a stopped instance on its behalf.
func (r *runner) salvage(ctx context.Context, i pando.Instance, how string) time.Duration {
	branch := r.awaitBranch(ctx)
	if branch == nil {
		b, err := r.a.repo(r.service, i.Revision).Born(ctx, r.id, r.a.head(r.service))
		if err != nil {
			r.a.Log.Error("open a branch to salvage it", "instance", r.id, "error", err)
			return retryWait
		}
		r.a.mu.Lock()
		branch, r.branch = b, b
		r.a.mu.Unlock()
	}
	if i.Phase != pando.PhaseFailed {
		if _, err := branch.Commit(ctx, "the last writes of "+string(r.id), r.a.Clock.Now()); err != nil {
			return r.again(ctx, "commit the last writes", err)
		}
	}
	result, err := r.a.push(ctx, r)
	if errors.Is(err, errMoved) {
		r.decide(ctx, pando.DecidedSalvage, err.Error(), nil)
		r.become(pando.PhaseMerged, "not merged: the service has moved; its commits stay here")
		return atOnce
	}
	if err != nil {
		return r.again(ctx, "merge a branch", err)
	}
	if i.Phase == pando.PhaseFailed && result.Taken+result.Merged > 0 {
		r.decide(ctx, pando.DecidedSalvage, fmt.Sprintf("%d paths of its committed state were merged", result.Taken+result.Merged), nil)
	}
	r.become(pando.PhaseMerged, how)
	return atOnce
}

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

// bury records the end, then removes the sandbox and then the record. In this order, an agent that
// starts in between never starts the instance again.
func (r *runner) bury(ctx context.Context) time.Duration {
	if err := r.recorder.flush(ctx); err != nil {
		return r.again(ctx, "record the end of an instance", err)
	}
	failpoint.Hit("die recorded")
	r.tearDown(ctx)
	failpoint.Hit("die removed")
	r.a.mu.Lock()
	t := pando.Txn{Delete: []pando.Key{r.inst.Key()}}
	now := r.a.Clock.Now()
	for _, i := range r.a.world.IntentsOf(r.service) {
		v := r.a.world.Intents[i.ID]
		if v.V.Instance == r.id && v.V.Verb != pando.VerbReplicate && v.V.State.May(pando.IntentDead) {
			t.If = append(t.If, v.If())
			t.Put = append(t.Put, v.V.Become(pando.IntentDead, now, "its sandbox and its record are gone"))
		}
	}
	r.a.mu.Unlock()
	if _, err := r.a.commit(ctx, t); err != nil {
		if errors.Is(err, pando.ErrConflict) {
			return 5 * time.Millisecond
		}
		return r.again(ctx, "remove the record of an instance", err)
	}
	failpoint.Hit("die forgotten")
	return r.remove(ctx)
}

// tearDown releases everything that the instance has on this host except its record and its branch.
func (r *runner) tearDown(ctx context.Context) {
	_ = r.awaitBranch(ctx) // the birth of the branch must not finish later
	r.a.Sandboxes.Discard(r.id)
	r.a.mu.Lock()
	box := r.box
	r.box = nil
	r.a.publish(r.service)
	r.a.mu.Unlock()
	if box == nil {
		return
	}
	if err := r.a.Steering.Disconnect(ctx, box.Link()); err != nil {
		r.a.Log.Warn("disconnect an instance from steering", "instance", r.id, "error", err)
	}
	if err := box.Remove(ctx); err != nil {
		r.a.Log.Error("remove a sandbox", "instance", r.id, "error", err)
	}
}

// remove tears the instance down, drops its branch and ends the runner.
func (r *runner) remove(ctx context.Context) time.Duration {
	r.tearDown(ctx)
	if err := r.a.dropBranch(ctx, r.service, r.id); err != nil && !errors.Is(err, errMoved) {
		return r.again(ctx, "drop the branch of an instance that is gone", err)
	}
	r.recorder.close()
	r.events.close()
	r.a.mu.Lock()
	defer r.a.mu.Unlock()
	r.a.delist(r)
	return 0
}
