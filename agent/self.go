package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"pando.run/pando"
	"pando.run/pando/failpoint"
)

var _ pando.Self = (*Agent)(nil)

// ackWait is how long a halt waits for a host's acknowledgement before it lists the host as
// unreachable.
const ackWait = 700 * time.Millisecond

// runner returns the runner of the calling instance.
func (a *Agent) runner(i pando.InstanceID) (*runner, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r, ok := a.runners[i]
	if !ok {
		return nil, fmt.Errorf("instance %s: %w on this host", i, pando.ErrNotFound)
	}
	return r, nil
}

// Describe implements pando.Self.
func (a *Agent) Describe(_ context.Context, i pando.InstanceID) (pando.SelfView, error) {
	r, err := a.runner(i)
	if err != nil {
		return pando.SelfView{}, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	svc := a.world.Services[r.service].V
	spec, _ := a.world.SpecOf(r.service, svc.Target)
	v := pando.SelfView{
		Instance: r.inst, Scale: spec.Scale, Peers: a.peers(r.service), Pending: r.asking, Pin: svc.Pin,
		Metrics: maps.Clone(r.metric), Flows: a.sweep.Flows[i],
	}
	if svc.VIP4.IsValid() {
		v.VIP = svc.VIP4.String()
	}
	return v, nil
}

// peers lists the instances of a service that take flows. The caller holds the lock.
func (a *Agent) peers(s pando.ServiceKey) []pando.InstanceStatus {
	out := []pando.InstanceStatus{}
	for _, i := range a.world.Of(s) {
		if r, ok := a.runners[i.ID]; ok {
			i = r.inst
		}
		if i.Phase.TakesFlows() {
			out = append(out, pando.InstanceStatus{Instance: i})
		}
	}
	return out
}

// Ready implements pando.Self.
func (a *Agent) Ready(ctx context.Context, i pando.InstanceID) error {
	r, err := a.runner(i)
	if err != nil {
		return err
	}
	a.mu.Lock()
	r.ready = true
	r.kick()
	box := r.box
	a.mu.Unlock()
	if box == nil {
		return nil
	}
	// The sandbox stores the readiness, because the program does not repeat it to the next agent.
	return box.Notify(ctx)
}

// PutMetrics implements pando.Self.
func (a *Agent) PutMetrics(_ context.Context, i pando.InstanceID, m map[string]float64) error {
	r, err := a.runner(i)
	if err != nil {
		return err
	}
	if len(m) > metricsMax {
		return fmt.Errorf("metrics: %w: %d numbers, at most %d", pando.ErrTooLarge, len(m), metricsMax)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	r.metric = named(m)
	return nil
}

// Events implements pando.Self.
func (a *Agent) Events(ctx context.Context, i pando.InstanceID, after uint64) (<-chan pando.SelfEvent, error) {
	r, err := a.runner(i)
	if err != nil {
		return nil, err
	}
	return r.events.stream(ctx, after), nil
}

// Replicate implements pando.Self.
func (a *Agent) Replicate(ctx context.Context, i pando.InstanceID, ask pando.Ask) (pando.Intent, error) {
	r, intent, err := a.ask(ctx, i, pando.VerbReplicate, ask)
	if err != nil {
		return intent, err
	}
	defer a.answered(r)
	intent, err = a.awaitIntent(ctx, intent, func(v pando.Intent) bool { return v.State != pando.IntentAsked })
	if err == nil && ask.Wait && !intent.State.Ended() {
		intent, err = a.awaitIntent(ctx, intent, func(v pando.Intent) bool { return v.State.Ended() })
	}
	switch {
	case err != nil:
		return intent, err
	case intent.State == pando.IntentRefused, intent.State == pando.IntentFailed:
		return intent, fmt.Errorf("replicate %w: %s", pando.ErrRefused, intent.Reason)
	}
	return intent, nil
}

// Halt implements pando.Self.
func (a *Agent) Halt(ctx context.Context, i pando.InstanceID, ask pando.Ask) (pando.HaltResult, error) {
	r, intent, err := a.ask(ctx, i, pando.VerbHalt, ask)
	if err != nil {
		return pando.HaltResult{Intent: intent}, err
	}
	defer a.answered(r)
	intent, err = a.awaitIntent(ctx, intent, func(v pando.Intent) bool { return v.State != pando.IntentAsked })
	if err != nil {
		return pando.HaltResult{Intent: intent}, err
	}
	if intent.State == pando.IntentRefused {
		return pando.HaltResult{Intent: intent}, fmt.Errorf("halt %w: %s", pando.ErrRefused, intent.Reason)
	}
	failpoint.Hit("halt granted")
	a.mu.Lock()
	at := a.world.Intents[intent.ID].Modified
	var hosts []pando.Host
	for _, h := range a.world.Hosts {
		hosts = append(hosts, h.V)
	}
	a.mu.Unlock()
	return pando.HaltResult{Intent: intent, Unreachable: a.acknowledged(ctx, hosts, r.service, at)}, nil
}

// acknowledged waits until every host steers by a revision of the registry. It returns the hosts
// without an acknowledgement.
func (a *Agent) acknowledged(ctx context.Context, hosts []pando.Host, s pando.ServiceKey, at pando.StoreRevision) []pando.HostName {
	ctx, cancel := context.WithTimeout(ctx, ackWait)
	defer cancel()
	type answer struct {
		host pando.HostName
		err  error
	}
	answers := make(chan answer, len(hosts))
	for _, h := range hosts {
		go func() {
			if h.Name == a.Host.Name {
				answers <- answer{h.Name, a.Applied(ctx, s, at)}
				return
			}
			answers <- answer{h.Name, a.Peers.Applied(ctx, h, s, at)}
		}()
	}
	var missing []pando.HostName
	for range hosts {
		if v := <-answers; v.err != nil {
			missing = append(missing, v.host)
		}
	}
	return missing
}

// ask writes the request of an instance. Each instance may have one outstanding request.
func (a *Agent) ask(ctx context.Context, i pando.InstanceID, verb pando.Verb, ask pando.Ask) (*runner, pando.Intent, error) {
	r, err := a.runner(i)
	if err != nil {
		return nil, pando.Intent{}, err
	}
	inputs, err := inputsOf(ask)
	if err == nil {
		err = r.pace.wait(ctx, a.Clock)
	}
	if err != nil {
		return nil, pando.Intent{}, err
	}
	now := a.Clock.Now()
	reason := reasonOf(ask)
	intent := pando.Intent{
		ID: pando.IntentID(a.IDs.Sequential(now)), Service: r.service, Verb: verb, Host: a.Host.Name, Inputs: inputs,
		By: pando.Asker{Kind: pando.AskerInstance, Name: string(i)},
	}.Become(pando.IntentAsked, now, reason)
	if verb == pando.VerbHalt {
		intent.Instance = i
	}
	a.mu.Lock()
	if r.asking != nil {
		pending := *r.asking
		a.mu.Unlock()
		return nil, pending, fmt.Errorf("%w: a %s of this instance is pending", pando.ErrConflict, pending.Verb)
	}
	r.asking = &intent
	ahead := nothing
	if verb == pando.VerbReplicate {
		ahead = a.prepare(&intent)
	}
	a.mu.Unlock()
	defer ahead.settle()
	if err := r.recorder.flush(ctx); err != nil {
		a.answered(r)
		return nil, intent, err
	}
	if err := a.submit(ctx, intent, ahead.begin); err != nil {
		a.answered(r)
		return nil, intent, fmt.Errorf("%s: %w", verb, err)
	}
	failpoint.Hit(string(verb) + " asked")
	return r, intent, nil
}

// answerWaitMax is how long an ask waits for control before the agent writes it without an answer.
const answerWaitMax = time.Second

// submit makes an ask durable. If control is in reach, it writes the ask together with its answer.
// Otherwise submit writes the ask alone, and the watch brings the answer. A lost answer is in the
// store, where the second write collides with it. Control calls sent once the ask is on its way.
func (a *Agent) submit(ctx context.Context, i pando.Intent, sent func()) error {
	if a.Control != nil {
		a.mu.Lock()
		fence := a.fence
		a.mu.Unlock()
		call, cancel := context.WithTimeout(ctx, answerWaitMax)
		records, err := a.Control.Answer(call, fence, i, sent)
		cancel()
		switch {
		case err == nil:
			a.learn(records)
			return nil
		case errors.Is(err, pando.ErrStoreFull), errors.Is(err, pando.ErrFenced), ctx.Err() != nil:
			return err
		}
	}
	_, err := a.commit(ctx, pando.Txn{If: []pando.Condition{{Key: i.Key()}}, Put: []pando.Stored{i}})
	if errors.Is(err, pando.ErrConflict) {
		return nil
	}
	return err
}

func (a *Agent) answered(r *runner) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r.asking = nil
}

// awaitIntent waits until want accepts an intent.
func (a *Agent) awaitIntent(ctx context.Context, i pando.Intent, want func(pando.Intent) bool) (pando.Intent, error) {
	err := a.wait(ctx, func() bool {
		v, ok := a.world.Intents[i.ID]
		if !ok {
			return false
		}
		i = v.V
		return want(i)
	})
	return i, err
}

// Die implements pando.Self.
func (a *Agent) Die(ctx context.Context, i pando.InstanceID, ask pando.Ask) (pando.Intent, error) {
	r, err := a.runner(i)
	if err != nil {
		return pando.Intent{}, err
	}
	inputs, err := inputsOf(ask)
	if err == nil {
		err = a.mayDie(ctx, r)
	}
	if err != nil {
		return pando.Intent{}, err
	}
	if err := r.recorder.flush(ctx); err != nil {
		return pando.Intent{}, err
	}
	now := a.Clock.Now()
	a.mu.Lock()
	known := a.world.Instances[i]
	inst := r.inst
	inst.Halt, inst.Walk = known.V.Halt, known.V.Walk || inst.Walk
	if inst.Phase == pando.PhaseDraining {
		inst = inst.Become(pando.PhaseDrained, now, "its application reports ready")
	}
	if inst.Phase != pando.PhaseDrained {
		a.mu.Unlock()
		return pando.Intent{}, fmt.Errorf("die %w: the instance is %s", pando.ErrRefused, inst.Phase)
	}
	inst = inst.Become(pando.PhaseMerged, now, "its state is in main")
	intent := pando.Intent{
		ID: pando.IntentID(a.IDs.Sequential(now)), Service: r.service, Verb: pando.VerbDie, Host: a.Host.Name, Instance: i,
		By: pando.Asker{Kind: pando.AskerInstance, Name: string(i)}, Inputs: inputs,
	}.Become(pando.IntentAsked, now, reasonOf(ask)).Become(pando.IntentGranted, now, "its state is in main").
		Become(pando.IntentMerged, now, "its state is in main")
	t := pando.Txn{If: []pando.Condition{known.If()}, Put: []pando.Stored{inst, intent}}
	r.dieNow = true
	a.mu.Unlock()
	_, err = a.commit(ctx, t)
	failpoint.Hit("die merged")
	a.mu.Lock()
	defer a.mu.Unlock()
	r.dieNow = false
	defer r.kick()
	if err != nil {
		return intent, fmt.Errorf("die: %w", err)
	}
	r.inst = inst
	return intent, nil
}

// mayDie refuses death before halt, with flows left, and until the merge of the instance's state is
// durable.
func (a *Agent) mayDie(ctx context.Context, r *runner) error {
	a.mu.Lock()
	phase, box, head := r.inst.Phase, r.box, a.world.Heads[r.service].V
	a.mu.Unlock()
	if phase != pando.PhaseDraining && phase != pando.PhaseDrained {
		return fmt.Errorf("die %w: the instance is %s; halt it first", pando.ErrRefused, phase)
	}
	if box != nil && phase == pando.PhaseDraining {
		n, err := box.Flows(ctx)
		if err != nil {
			return fmt.Errorf("die %w: its open flows cannot be counted; ask again: %w", pando.ErrRefused, err)
		}
		if n > 0 {
			return fmt.Errorf("die %w: %d flows are open; wait for the event drained", pando.ErrRefused, n)
		}
	}
	branch := r.awaitBranch(ctx)
	if branch == nil {
		return ctx.Err()
	}
	merged, err := branch.Merged(head.Commit)
	if err != nil {
		return a.moved(head, err)
	}
	if !merged {
		return fmt.Errorf("die %w: the instance's state is not in main; POST /v1/self/state/push first", pando.ErrRefused)
	}
	return nil
}

// errNoState reports that the branch of an instance could not be opened. The agent's log has the
// reason.
var errNoState = errors.New("the state of this instance could not be opened")
