package control

import (
	"context"
	"fmt"
	"slices"

	"pando.run/pando"
	"pando.run/pando/control/decide"
	"pando.run/pando/world"
)

var _ pando.Decider = (*Control)(nil)

// ask is a request that an agent brings itself, before the store has it.
type ask struct {
	intent pando.Intent
	by     pando.Fence
	answer chan answer // buffered, so that a send never waits
}

type answer struct {
	records []pando.Record
	err     error
}

// Answer implements pando.Decider. One decision answers the ask together with all other asks and
// changes of its service. The first caller that gets the turn makes the decision, and it makes one
// attempt. After a conflict, each asker writes its ask to the store and waits for the watch.
//
// An ask beyond the bounds of its service (scale.Door) gets ErrRefused and no record.
func (c *Control) Answer(
	ctx context.Context, by pando.Fence, i pando.Intent, sent func(),
) ([]pando.Record, error) {
	if i.State != pando.IntentAsked || by == (pando.Fence{}) {
		return nil, fmt.Errorf("%w: intent %s is %q and comes from %q; want "+
			"one that is asked, from a host", pando.ErrInvalid, i.ID, i.State, by.Key)
	}
	mine := &ask{i, by, make(chan answer, 1)}
	c.mirror.Mu.Lock()
	if err := c.door.Admit(i.Service, len(c.asks[i.Service]), c.mirror.Clock.Now()); err != nil {
		c.mirror.Mu.Unlock()
		return nil, err
	}
	c.asks[i.Service] = append(c.asks[i.Service], mine)
	c.mirror.Mu.Unlock()
	defer c.withdraw(mine)
	sent()
	taken, leave := c.turns.of(i.Service)
	defer leave()
	select {
	case v := <-mine.answer:
		return v.records, v.err
	case taken <- struct{}{}:
		defer func() { <-taken }()
	case <-ctx.Done():
		return nil, fmt.Errorf("answer a %s of %s: %w: %w", i.Verb, i.Service, pando.ErrUnavailable,
			ctx.Err())
	}
	select {
	case v := <-mine.answer: // from the previous turn
		return v.records, v.err
	default:
	}
	term := c.leading()
	if term == (pando.Fence{}) {
		return nil, fmt.Errorf("answer a %s of %s: %w: this server does not lead",
			i.Verb, i.Service, pando.ErrUnavailable)
	}
	for { // older asks may come first
		// The end of this asker ends no answer of the others. mine.answer has the result.
		_ = c.decide(context.WithoutCancel(ctx), term, i.Service)
		c.mirror.Wake() // the decision may have consequences
		select {
		case v := <-mine.answer:
			return v.records, v.err
		default:
		}
	}
}

// asksAtOnce bounds the asks of one decision. Each may write an intent and an instance, and the
// decision starts nothing new after operationsMax writes.
const asksAtOnce = decide.OperationsMax/2 - 10

// takeAsks removes and returns the oldest waiting asks of a service, as many as one decision
// answers. Each of the others makes its own decision when it has the turn. The caller holds the
// lock.
func (c *Control) takeAsks(s pando.ServiceKey) []*ask {
	all := c.asks[s]
	asks := slices.Clone(all[:min(len(all), asksAtOnce)])
	if c.asks[s] = slices.Delete(all, 0, len(asks)); len(c.asks[s]) == 0 {
		delete(c.asks, s)
	}
	return asks
}

// withdraw removes an ask that no decision has taken yet.
func (c *Control) withdraw(a *ask) {
	c.mirror.Mu.Lock()
	defer c.mirror.Mu.Unlock()
	s := a.intent.Service
	c.asks[s] = slices.DeleteFunc(c.asks[s], func(o *ask) bool { return o == a })
	if len(c.asks[s]) == 0 {
		delete(c.asks, s)
	}
}

// answer sends askers the result of the decision about their asks, or the error of its write.
func (c *Control) answer(asks []*ask, err error) {
	c.mirror.Mu.Lock()
	defer c.mirror.Mu.Unlock()
	for _, a := range asks {
		if err != nil {
			a.answer <- answer{err: err}
			continue
		}
		records, err := c.recordsOf(a.intent)
		a.answer <- answer{records, err}
	}
}

// recordsOf returns the stored records of an ask and of its instance. It refuses the intent of
// another asker. The caller holds the lock.
func (c *Control) recordsOf(a pando.Intent) ([]pando.Record, error) {
	i, ok := c.mirror.World.Intents[a.ID]
	if !ok {
		return nil, fmt.Errorf("%w: intent %s was not answered", pando.ErrUnavailable, a.ID)
	}
	if i.V.Key() != a.Key() || i.V.By != a.By { // its host is that of the placement now
		return nil, fmt.Errorf("%w: another has asked as intent %s", pando.ErrConflict, a.ID)
	}
	first, err := recordOf(i)
	if err != nil {
		return nil, err
	}
	o, ok := c.mirror.World.Instances[i.V.Instance]
	if !ok {
		return []pando.Record{first}, nil
	}
	second, err := recordOf(o)
	return []pando.Record{second, first}, err
}

func recordOf[T pando.Stored](v world.Versioned[T]) (pando.Record, error) {
	b, err := world.Encode(v.V)
	return pando.Record{Key: v.V.Key(), Value: b, Modified: v.Modified}, err
}

func intentsOf(asks []*ask) (out []pando.Intent) {
	for _, a := range asks {
		out = append(out, a.intent)
	}
	return out
}

// fencesOf returns the conditions that the askers' hosts still hold their leases. An epoch's key is
// written once, so its creation is its last change.
func fencesOf(asks []*ask) (out []pando.Condition) {
	for _, a := range asks {
		v := pando.Condition{Key: a.by.Key, Modified: a.by.Created}
		if !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return out
}
