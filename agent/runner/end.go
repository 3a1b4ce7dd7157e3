package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/branch"
	"pando.run/pando/agent/work"
	"pando.run/pando/test/failpoint"
	"pando.run/pando/world"
)

// salvage merges the branch of a stopped instance on its behalf.
func (r *Runner) salvage(ctx context.Context, i pando.Instance, how string) time.Duration {
	b, err := r.host.Branches.Reopen(ctx, r.Service, r.ID, i.Revision)
	if err != nil {
		if ctx.Err() == nil {
			r.host.Log.Error("open a branch to salvage it", "instance", r.ID, "error", err)
		}
		return RetryWait
	}
	if i.Phase != pando.PhaseFailed {
		message := "the last writes of " + string(r.ID)
		if _, err := b.Commit(ctx, message, r.host.Clock.Now()); err != nil {
			return r.again(ctx, "commit the last writes", err)
		}
	}
	result, err := r.PushState(ctx)
	if errors.Is(err, branch.ErrMoved) {
		r.decide(ctx, pando.DecidedSalvage, err.Error(), nil)
		r.become(pando.PhaseMerged, "not merged: the service has moved; its commits stay here")
		return atOnce
	}
	if err != nil {
		return r.again(ctx, "merge a branch", err)
	}
	if n := result.Taken + result.Merged; i.Phase == pando.PhaseFailed && n > 0 {
		reason := fmt.Sprintf("%d paths of its committed state were merged", n)
		r.decide(ctx, pando.DecidedSalvage, reason, nil)
	}
	r.become(pando.PhaseMerged, how)
	return atOnce
}

// recordEnd records the end, then removes the sandbox and then the record. In this order, an agent
// that starts in between never starts the instance again.
func (r *Runner) recordEnd(ctx context.Context) time.Duration {
	if err := r.recorder.Flush(ctx); err != nil {
		return r.again(ctx, "record the end of an instance", err)
	}
	failpoint.Hit("die recorded")
	if err := r.tearDown(ctx); err != nil {
		return r.again(ctx, "remove a sandbox", err)
	}
	failpoint.Hit("die removed")
	r.removeVolumes(ctx)
	if err := r.readIntents(ctx); err != nil {
		return r.again(ctx, "read the asks about an instance", err)
	}
	if _, err := r.host.Records.Commit(ctx, r.lastTxn()); err != nil {
		if errors.Is(err, pando.ErrConflict) {
			r.end.stale = r.intentsOfInstance() // they are read again
			r.host.Records.ForgetIntents(r.end.stale...)
			return 5 * time.Millisecond
		}
		return r.again(ctx, "remove the record of an instance", err)
	}
	failpoint.Hit("die forgotten")
	return r.removeAll(ctx)
}

// removeVolumes deletes the volumes of a service that exists for one run. The record of the
// instance is still there, so an agent that starts in between also deletes them.
func (r *Runner) removeVolumes(ctx context.Context) {
	_, spec := r.described(r.inst)
	if !spec.IsOnce() || r.inst.Run == nil || r.host.Volumes == nil {
		return
	}
	for _, v := range spec.Volumes {
		err := r.host.Volumes.RemoveVolume(ctx, r.Service, v.Name)
		// Another instance of the run has it, and deletes it; or it was never made.
		if err != nil && !errors.Is(err, pando.ErrConflict) && !errors.Is(err, pando.ErrNotFound) {
			r.host.Log.Warn("a volume of one run stays; `pando volume rm` deletes it", "service",
				r.Service.String(), "volume", v.Name, "error", err)
		}
	}
}

// lastTxn deletes the record of the instance and ends the intents that end with it.
func (r *Runner) lastTxn() pando.Txn {
	t := pando.Txn{Delete: []pando.Key{r.inst.Key()}}
	now := r.host.Clock.Now()
	r.host.Records.Read(func(*world.World) {
		var ends []pando.IntentID
		for id, v := range r.host.Records.Intents {
			if r.EndsWith(v.V) && v.V.State.May(pando.IntentDead) {
				ends = append(ends, id)
			}
		}
		slices.Sort(ends)
		for _, id := range ends {
			v := r.host.Records.Intents[id]
			dead := v.V.Become(pando.IntentDead, now, "its sandbox and its record are gone")
			t.If = append(t.If, v.If())
			t.Put = append(t.Put, dead)
		}
	})
	return t
}

// EndsWith reports whether an intent ends with the instance.
func (r *Runner) EndsWith(i pando.Intent) bool {
	return i.Instance == r.ID && i.Verb != pando.VerbReplicate
}

// intentsOfInstance returns the known intents of the instance.
func (r *Runner) intentsOfInstance() (ids []pando.IntentID) {
	r.host.Records.Read(func(*world.World) {
		for id, i := range r.host.Records.Intents {
			if i.V.Instance == r.ID || id == r.inst.Intent || id == r.inst.Halt {
				ids = append(ids, id)
			}
		}
	})
	return ids
}

// readIntents reads the intents that end with the instance. A former agent may have written one
// that the record does not name.
func (r *Runner) readIntents(ctx context.Context) error {
	if r.inherited {
		if err := r.host.Agent.ReadAsks(ctx, r.Service, r.enlisted); err != nil {
			return err
		}
	}
	return r.host.Records.BringIntents(ctx, r.Service, append(r.end.stale, r.inst.Halt)...)
}

// tearDown releases everything that the instance has on this host except its record and its branch.
// Its link goes after the steering table without it was published, or could not be. An error means
// that its program may run: its record stays, so no other instance takes its place.
func (r *Runner) tearDown(ctx context.Context) error {
	// The creation of the branch must not finish later. A branch that failed to open has none.
	_, _ = r.host.Branches.Of(ctx, r.ID)
	r.host.Supplier.Sandboxes.Discard(r.ID)
	if box := r.box; box != nil {
		r.box, r.end.left = nil, box
		r.show()
		r.host.Work.End(ctx, work.Running{Instance: r.inst, Box: box, Born: r.born()})
		r.disconnect(ctx, box.Link())
		r.host.Agent.HandOver(r, box)
	}
	if left := r.end.left; left != nil {
		if err := left.Remove(ctx); err != nil {
			return err
		}
		r.end.left = nil
	}
	return nil
}

// removeAll tears the instance down, drops its branch and ends the runner.
func (r *Runner) removeAll(ctx context.Context) time.Duration {
	if err := r.tearDown(ctx); err != nil {
		return r.again(ctx, "remove a sandbox", err)
	}
	err := r.host.Branches.Drop(ctx, r.Service, r.ID)
	if err != nil && !errors.Is(err, branch.ErrMoved) {
		return r.again(ctx, "drop the branch of an instance that is gone", err)
	}
	r.endTableWait()
	r.recorder.Close()
	r.Events.Close()
	r.host.Records.ForgetIntents(r.intentsOfInstance()...)
	r.host.Agent.Remove(r)
	r.host.Branches.Forget(r.ID)
	r.gone = true
	return 0
}

// die writes the last step of an instance at the request of its application. The runner removes the
// instance afterwards.
func (r *Runner) die(ctx context.Context, q deathAsked) death {
	asked, cancel := context.WithCancel(q.ctx)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	if err := r.mayDie(asked); err != nil {
		return death{err: err}
	}
	if err := r.recorder.Flush(asked); err != nil {
		return death{err: err}
	}
	const why = "its state is in main"
	now := r.host.Clock.Now()
	known := r.host.Records.Record(r.ID)
	inst := r.inst
	inst.Halt, inst.Walk = known.V.Halt, known.V.Walk || inst.Walk
	if inst.Phase == pando.PhaseDraining {
		inst = inst.Become(pando.PhaseDrained, now, "its application reports that it is drained")
	}
	inst = inst.Become(pando.PhaseMerged, now, why)
	intent := r.NewIntent(pando.VerbDie, q.inputs)
	intent.Instance = r.ID
	intent = intent.Become(pando.IntentAsked, now, q.reason).
		Become(pando.IntentGranted, now, why).Become(pando.IntentMerged, now, why)
	_, err := r.host.Records.Commit(asked, pando.Txn{
		If: []pando.Condition{known.If()}, Put: []pando.Stored{inst, intent},
	})
	failpoint.Hit("die merged")
	if err != nil {
		return death{intent, fmt.Errorf("die: %w", err)}
	}
	r.inst = inst
	r.show()
	return death{intent: intent}
}

// mayDie refuses death before halt, with flows left, and until the merge of the instance's state is
// durable.
func (r *Runner) mayDie(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	phase := r.inst.Phase
	if err := dyingMayBegin(phase); err != nil {
		return err
	}
	if r.box != nil && phase == pando.PhaseDraining {
		r.awaitTable(ctx)
		if steered, err := r.tableInForce(); !steered {
			return fmt.Errorf("die %w: new flows still come to it; ask again: %w",
				pando.ErrRefused, cmp.Or(err, ctx.Err()))
		}
		n, err := r.countOpenFlows(ctx)
		if err != nil {
			return fmt.Errorf("die %w: its open flows cannot be counted; ask again: %w",
				pando.ErrRefused, err)
		}
		if n > 0 {
			return fmt.Errorf("die %w: %d flows are open; wait for the event drained",
				pando.ErrRefused, n)
		}
	}
	merged, err := r.host.Branches.Merged(ctx, r.Service, r.ID)
	if errors.Is(err, branch.ErrNoState) {
		return nil // there is no state to lose
	}
	if err != nil {
		return err
	}
	if !merged {
		return fmt.Errorf("die %w: the instance's state is not in main;"+
			" POST /v1/self/state/push first", pando.ErrRefused)
	}
	return nil
}

// countOpenFlows counts the flows at the VIP, and the sockets that chose at connect.
func (r *Runner) countOpenFlows(ctx context.Context) (int, error) {
	n, err := r.box.Flows(ctx)
	if n > 0 || err != nil || !r.choosesAtConnect() {
		return n, err
	}
	since := r.leave.closed // by the clock of this host, as the sweeps
	if since.IsZero() {
		since = r.host.Clock.Now()
	}
	return r.host.Sweeper.Flows(ctx, r.ID, since)
}

// choosesAtConnect reports whether sockets lead straight to the instances of the service.
func (r *Runner) choosesAtConnect() (at bool) {
	r.host.Records.Read(func(w *world.World) {
		at = w.Endpoints[r.Service].V.Balance.At == pando.AtConnect
	})
	return at
}
