package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/branch"
	"pando.run/pando/agent/turn"
	"pando.run/pando/agent/work"
	"pando.run/pando/test/failpoint"
	"pando.run/pando/world"
)

// end merges the branch of an instance and removes the instance.
type end struct {
	left  pando.Sandbox    // it is out of sight, and not removed yet
	stale []pando.IntentID // its asks, of which one has changed
}

// salvage merges the branch of a stopped instance on its behalf.
func (r *runner) salvage(ctx context.Context, i pando.Instance, how string) time.Duration {
	b, err := r.a.branches.Reopen(ctx, r.service, r.id, i.Revision)
	if err != nil {
		if ctx.Err() == nil {
			r.a.Log.Error("open a branch to salvage it", "instance", r.id, "error", err)
		}
		return retryWait
	}
	if i.Phase != pando.PhaseFailed {
		message := "the last writes of " + string(r.id)
		if _, err := b.Commit(ctx, message, r.a.Clock.Now()); err != nil {
			return r.again(ctx, "commit the last writes", err)
		}
	}
	result, err := r.push(ctx)
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
func (r *runner) recordEnd(ctx context.Context) time.Duration {
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
	if _, err := r.a.records.Commit(ctx, r.lastTxn()); err != nil {
		if errors.Is(err, pando.ErrConflict) {
			r.end.stale = r.intentsOfInstance() // they are read again
			r.a.records.ForgetIntents(r.end.stale...)
			return 5 * time.Millisecond
		}
		return r.again(ctx, "remove the record of an instance", err)
	}
	failpoint.Hit("die forgotten")
	return r.removeAll(ctx)
}

// removeVolumes deletes the volumes of a service that exists for one run. The record of the
// instance is still there, so an agent that starts in between deletes them as well.
func (r *runner) removeVolumes(ctx context.Context) {
	_, spec := r.described(r.inst)
	if !spec.IsOnce() || r.inst.Run == nil || r.a.Kept == nil {
		return
	}
	for _, v := range spec.Volumes {
		err := r.a.Kept.RemoveVolume(ctx, r.service, v.Name)
		// Another instance of the run has it, and deletes it; or it was never made.
		if err != nil && !errors.Is(err, pando.ErrConflict) && !errors.Is(err, pando.ErrNotFound) {
			r.a.Log.Warn("a volume of one run stays; `pando volume rm` deletes it", "service",
				r.service.String(), "volume", v.Name, "error", err)
		}
	}
}

// lastTxn deletes the record of the instance and ends the intents that end with it.
func (r *runner) lastTxn() pando.Txn {
	t := pando.Txn{Delete: []pando.Key{r.inst.Key()}}
	now := r.a.Clock.Now()
	r.a.records.Read(func(*world.World) {
		var ends []pando.IntentID
		for id, v := range r.a.records.Intents {
			if r.endsWith(v.V) && v.V.State.May(pando.IntentDead) {
				ends = append(ends, id)
			}
		}
		slices.Sort(ends)
		for _, id := range ends {
			v := r.a.records.Intents[id]
			dead := v.V.Become(pando.IntentDead, now, "its sandbox and its record are gone")
			t.If = append(t.If, v.If())
			t.Put = append(t.Put, dead)
		}
	})
	return t
}

// endsWith reports whether an intent ends with the instance.
func (r *runner) endsWith(i pando.Intent) bool {
	return i.Instance == r.id && i.Verb != pando.VerbReplicate
}

// intentsOfInstance returns the known intents of the instance.
func (r *runner) intentsOfInstance() (ids []pando.IntentID) {
	r.a.records.Read(func(*world.World) {
		for id, i := range r.a.records.Intents {
			if i.V.Instance == r.id || id == r.inst.Intent || id == r.inst.Halt {
				ids = append(ids, id)
			}
		}
	})
	return ids
}

// readIntents reads the intents that end with the instance. A former agent may have written one
// that the record does not name.
func (r *runner) readIntents(ctx context.Context) error {
	if r.inherited {
		if err := r.a.askReads.read(ctx, r.service, r.enlisted); err != nil {
			return err
		}
	}
	return r.a.records.BringIntents(ctx, r.service, append(r.end.stale, r.inst.Halt)...)
}

// askReads reads the asks of services that former agents wrote for instances of this host. The asks
// of a service grow with its instances, so all instances that this agent took over share one read.
type askReads struct {
	a    *Agent
	turn turn.Turn
	seq  atomic.Uint64
	// began is the place in seq at which the last whole read of a service began. The turn guards it.
	began map[pando.ServiceKey]uint64
}

func newAskReads(a *Agent) *askReads {
	return &askReads{a: a, turn: turn.New(), began: map[pando.ServiceKey]uint64{}}
}

// read brings the asks that end with instances of this host, unless a read of their service began
// after a place in seq.
func (q *askReads) read(ctx context.Context, s pando.ServiceKey, after uint64) error {
	if err := q.turn.Take(ctx); err != nil {
		return err
	}
	defer q.turn.Give()
	if q.began[s] > after {
		return nil
	}
	q.forget()
	began := q.seq.Add(1)
	here := func(i pando.Intent) bool { r := q.a.crews.runners[i.Instance]; return r != nil && r.endsWith(i) }
	if err := q.a.records.ReadIntents(ctx, pando.Intent{Service: s}.Key(), here); err != nil {
		return err
	}
	q.began[s] = began
	return nil
}

// forget drops the services without an instance here. The caller holds the turn.
func (q *askReads) forget() {
	q.a.records.Read(func(*world.World) {
		maps.DeleteFunc(q.began, func(s pando.ServiceKey, _ uint64) bool { return len(q.a.crews.of[s]) == 0 })
	})
}

// tearDown releases everything that the instance has on this host except its record and its branch.
// Its link goes after the steering table without it was published, or could not be. An error means
// that its program may run: its record stays, so no other instance takes its place.
func (r *runner) tearDown(ctx context.Context) error {
	// The birth of the branch must not finish later. A branch that failed to open has none.
	_, _ = r.a.branches.Of(ctx, r.id)
	r.a.supplier.Sandboxes.Discard(r.id)
	if box := r.box; box != nil {
		r.box, r.end.left = nil, box
		r.show()
		r.a.work.End(ctx, work.Running{Instance: r.inst, Box: box, Born: r.born()})
		r.disconnect(ctx, box.Link())
		r.a.departures.handOver(r, box)
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
func (r *runner) removeAll(ctx context.Context) time.Duration {
	if err := r.tearDown(ctx); err != nil {
		return r.again(ctx, "remove a sandbox", err)
	}
	err := r.a.branches.Drop(ctx, r.service, r.id)
	if err != nil && !errors.Is(err, branch.ErrMoved) {
		return r.again(ctx, "drop the branch of an instance that is gone", err)
	}
	r.endTableWait()
	r.recorder.Close()
	r.events.Close()
	r.a.records.ForgetIntents(r.intentsOfInstance()...)
	r.a.crews.delist(r)
	r.a.records.Read(func(*world.World) { r.a.scope.rescope(r.service) })
	r.a.branches.Forget(r.id)
	r.gone = true
	return 0
}

// deathAsked is the request of an application to die.
type deathAsked struct {
	ctx    context.Context // of the request
	ask    pando.Ask
	inputs map[string]float64
	answer chan<- death // has room for the answer
}

// death is the answer to a request to die.
type death struct {
	intent pando.Intent
	err    error
}

// die writes the last step of an instance at the request of its application. The runner removes the
// instance afterwards.
func (r *runner) die(ctx context.Context, q deathAsked) death {
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
	now := r.a.Clock.Now()
	known := r.a.records.Record(r.id)
	inst := r.inst
	inst.Halt, inst.Walk = known.V.Halt, known.V.Walk || inst.Walk
	if inst.Phase == pando.PhaseDraining {
		inst = inst.Become(pando.PhaseDrained, now, "its application reports that it is drained")
	}
	inst = inst.Become(pando.PhaseMerged, now, why)
	intent := r.newIntent(pando.VerbDie, q.inputs)
	intent.Instance = r.id
	intent = intent.Become(pando.IntentAsked, now, reasonOf(q.ask)).
		Become(pando.IntentGranted, now, why).Become(pando.IntentMerged, now, why)
	_, err := r.a.records.Commit(asked, pando.Txn{
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
func (r *runner) mayDie(ctx context.Context) error {
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
	merged, err := r.a.branches.Merged(ctx, r.service, r.id)
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
func (r *runner) countOpenFlows(ctx context.Context) (int, error) {
	n, err := r.box.Flows(ctx)
	if n > 0 || err != nil || !(tables{r.a}).choosesAtConnect(r.service) {
		return n, err
	}
	since := r.leave.closed // by the clock of this host, as the sweeps
	if since.IsZero() {
		since = r.a.Clock.Now()
	}
	return r.a.sweeper.Flows(ctx, r.id, since)
}

// dyingMayBegin refuses death before halt.
func dyingMayBegin(p pando.Phase) error {
	if p == pando.PhaseDraining || p == pando.PhaseDrained {
		return nil
	}
	return fmt.Errorf("die %w: the instance is %s; halt it first", pando.ErrRefused, p)
}
