package self

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/runner"
	"pando.run/pando/test/failpoint"
)

const (
	// ackWait is how long a halt waits for a host's acknowledgement before it lists the host as
	// unreachable.
	ackWait = 700 * time.Millisecond
	// answerWaitMax is how long an ask waits for control before the agent writes it without an answer.
	answerWaitMax = time.Second
)

// Replicate implements pando.Self.
func (s *API) Replicate(
	ctx context.Context, i pando.InstanceID, ask pando.Ask,
) (pando.Intent, error) {
	r, intent, err := s.ask(ctx, i, pando.VerbReplicate, ask)
	if err != nil {
		return intent, err
	}
	defer s.dismiss(&intent)
	defer r.Caller.Answered()
	intent, err = s.awaitIntent(ctx, intent, answered)
	if err == nil && ask.Wait && !intent.State.Ended() {
		intent, err = s.awaitIntent(ctx, intent, func(v pando.Intent) bool { return v.State.Ended() })
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
func (s *API) Halt(
	ctx context.Context, i pando.InstanceID, ask pando.Ask,
) (pando.HaltResult, error) {
	r, intent, err := s.ask(ctx, i, pando.VerbHalt, ask)
	if err != nil {
		return pando.HaltResult{Intent: intent}, err
	}
	defer s.dismiss(&intent)
	defer r.Caller.Answered()
	intent, err = s.awaitIntent(ctx, intent, answered)
	if err != nil {
		return pando.HaltResult{Intent: intent}, err
	}
	if intent.State == pando.IntentRefused {
		return pando.HaltResult{Intent: intent},
			fmt.Errorf("halt %w: %s", pando.ErrRefused, intent.Reason)
	}
	failpoint.Hit("halt granted")
	at, err := s.halted(ctx, r.Service, i)
	if err != nil {
		return pando.HaltResult{Intent: intent}, err
	}
	s.Records.Lock()
	var hosts []pando.Host
	for _, h := range s.Records.World.Hosts {
		hosts = append(hosts, h.V)
	}
	s.Records.Unlock()
	missing := s.acknowledged(ctx, hosts, []pando.ServiceKey{r.Service}, at)
	return pando.HaltResult{Intent: intent, Unreachable: missing}, nil
}

// halted waits until the endpoints of a service have an instance as leaving, or its runner has
// ended. It returns their revision, at which every host steers no new flow to the instance.
// Endpoints without the instance may be older than the instance.
func (s *API) halted(
	ctx context.Context, of pando.ServiceKey, i pando.InstanceID,
) (at pando.StoreRevision, err error) {
	err = s.Records.Wait(ctx, func() bool {
		e := s.Records.World.Endpoints[of]
		at = e.Modified
		return s.Agent.RunnerIn(s.Records.World, i) == nil || slices.ContainsFunc(e.V.Seats, func(t pando.Seat) bool {
			return t.Instance == i && t.Phase == pando.PhaseDraining
		})
	})
	return at, err
}

// dismiss forgets the intent of an ask that was answered. An intent of an instance here is
// forgotten at the end of the instance.
func (s *API) dismiss(i *pando.Intent) {
	s.Records.Lock()
	defer s.Records.Unlock()
	if s.Agent.RunnerIn(s.Records.World, i.Instance) == nil {
		delete(s.Records.Intents, i.ID)
	}
}

// acknowledged waits until every host steers by a revision of the registry. It returns the hosts
// without an acknowledgement.
func (s *API) acknowledged(
	ctx context.Context, hosts []pando.Host, of []pando.ServiceKey, at pando.StoreRevision,
) []pando.HostName {
	ctx, cancel := context.WithTimeout(ctx, ackWait)
	defer cancel()
	type answer struct {
		host pando.HostName
		err  error
	}
	answers := make(chan answer, len(hosts))
	for _, h := range hosts {
		go func() {
			if h.Name == s.Host {
				_, err := s.Agent.Applied(ctx, of, at)
				answers <- answer{h.Name, err}
				return
			}
			_, err := s.Peers.Applied(ctx, h, of, at)
			answers <- answer{h.Name, err}
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
func (s *API) ask(
	ctx context.Context, i pando.InstanceID, verb pando.Verb, ask pando.Ask,
) (*runner.Runner, pando.Intent, error) {
	r, err := s.Agent.Runner(i)
	if err != nil {
		return nil, pando.Intent{}, err
	}
	inputs, err := inputsOf(ask)
	if err == nil {
		err = r.Caller.Paced(ctx, s.Clock)
	}
	if err == nil {
		err = s.door.admit(r.Service, s.Clock.Now())
	}
	if err != nil {
		return nil, pando.Intent{}, err
	}
	intent := r.NewIntent(verb, inputs)
	intent = intent.Become(pando.IntentAsked, s.Clock.Now(), reasonOf(ask))
	if verb == pando.VerbHalt {
		intent.Instance = i
	}
	ahead := nothing
	intent, ok := r.Caller.Begin(func() pando.Intent {
		if verb == pando.VerbReplicate {
			ahead = s.prepare(&intent)
		}
		return intent
	})
	if !ok {
		return nil, intent, fmt.Errorf("%w: a %s of this instance is pending",
			pando.ErrConflict, intent.Verb)
	}
	defer ahead.settle()
	err = r.Flush(ctx)
	if err == nil {
		if err = s.submit(ctx, intent, ahead.begin); err != nil {
			err = fmt.Errorf("%s: %w", verb, err)
		}
	}
	if err != nil {
		r.Caller.Answered()
		return nil, intent, err
	}
	failpoint.Hit(string(verb) + " asked")
	return r, intent, nil
}

// submit makes an ask durable. If control is in reach, it writes the ask together with its answer.
// Otherwise submit writes the ask alone, and the watch brings the answer. A lost answer is in the
// store, where the second write collides with it. Control calls sent once the ask is on its way.
func (s *API) submit(ctx context.Context, i pando.Intent, sent func()) error {
	if s.Control != nil {
		call, cancel := context.WithTimeout(ctx, answerWaitMax)
		records, err := s.Control.Answer(call, s.Records.Fence(), i, sent)
		cancel()
		switch {
		case err == nil:
			s.Agent.Learn(records)
			return nil
		case errors.Is(err, pando.ErrStoreFull), errors.Is(err, pando.ErrFenced),
			errors.Is(err, pando.ErrRefused), ctx.Err() != nil:
			return err
		}
	}
	_, err := s.Records.Commit(ctx, pando.Txn{
		If: []pando.Condition{{Key: i.Key()}}, Put: []pando.Stored{i},
	})
	if errors.Is(err, pando.ErrConflict) {
		return nil
	}
	return err
}

// answered reports whether control has answered an intent.
func answered(i pando.Intent) bool { return i.State != pando.IntentAsked }

// awaitIntent waits until want accepts an intent.
func (s *API) awaitIntent(
	ctx context.Context, i pando.Intent, want func(pando.Intent) bool,
) (pando.Intent, error) {
	look := func() bool {
		v, ok := s.Records.Intents[i.ID]
		if !ok {
			return false
		}
		i = v.V
		return want(i)
	}
	s.Records.Lock()
	done := look()
	s.Records.Unlock()
	if done {
		return i, nil
	}
	defer s.Records.FollowIntent(ctx, i)()
	err := s.Records.Wait(ctx, look)
	return i, err
}

// Die implements pando.Self.
func (s *API) Die(
	ctx context.Context, i pando.InstanceID, ask pando.Ask,
) (pando.Intent, error) {
	r, err := s.Agent.Runner(i)
	if err != nil {
		return pando.Intent{}, err
	}
	inputs, err := inputsOf(ask)
	if err != nil {
		return pando.Intent{}, err
	}
	return r.Die(ctx, reasonOf(ask), inputs)
}
