package control

import (
	"context"
	"fmt"
	"slices"

	"pando.run/pando"
	"pando.run/pando/world"
)

var _ pando.Decider = (*Control)(nil)

// ask is one that an agent brings itself instead of writing it into the store first.
type ask struct {
	intent pando.Intent
	by     pando.Fence
	answer chan answer // takes one without waiting
}

type answer struct {
	records []pando.Record
	err     error
}

// Answer implements pando.Decider. The ask is decided with all else that is known and asked of its service, by the first
// who gets the turn, and tried once: a decision that collides with news is left to the askers, who write what they ask and
// wait like everybody.
func (c *Control) Answer(ctx context.Context, by pando.Fence, i pando.Intent, sent func()) ([]pando.Record, error) {
	if i.State != pando.IntentAsked || by == (pando.Fence{}) {
		return nil, fmt.Errorf("%w: intent %s is %q and comes from %q; want one that is asked, from a host", pando.ErrInvalid, i.ID, i.State, by.Key)
	}
	mine := &ask{i, by, make(chan answer, 1)}
	c.mu.Lock()
	c.asks[i.Service] = append(c.asks[i.Service], mine)
	c.mu.Unlock()
	defer c.withdraw(mine)
	sent()
	select {
	case v := <-mine.answer:
		return v.records, v.err
	case c.deciding <- struct{}{}:
		defer func() { <-c.deciding }()
	case <-ctx.Done():
		return nil, fmt.Errorf("answer a %s of %s: %w: %w", i.Verb, i.Service, pando.ErrUnavailable, ctx.Err())
	}
	select {
	case v := <-mine.answer: // by who decided last
		return v.records, v.err
	default:
	}
	if c.term == (pando.Fence{}) {
		return nil, fmt.Errorf("answer a %s of %s: %w: this server does not lead", i.Verb, i.Service, pando.ErrUnavailable)
	}
	_ = c.decide(ctx, c.term, i.Service) // the answer says what became of it
	c.wake()                             // something may follow from it
	v := <-mine.answer
	return v.records, v.err
}

// takeAsks is everything that is asked of a service by now: who decides answers all of it at once. The caller holds the lock.
func (c *Control) takeAsks(s pando.ServiceKey) []*ask {
	asks := c.asks[s]
	delete(c.asks, s)
	return asks
}

// withdraw takes back an ask that nobody has taken to answer it.
func (c *Control) withdraw(a *ask) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := a.intent.Service
	if c.asks[s] = slices.DeleteFunc(c.asks[s], func(o *ask) bool { return o == a }); len(c.asks[s]) == 0 {
		delete(c.asks, s)
	}
}

// answer tells askers what has become of their asks, after the decision about them was written or could not be.
func (c *Control) answer(asks []*ask, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range asks {
		if err != nil {
			a.answer <- answer{err: err}
			continue
		}
		records, err := c.recordsOf(a.intent.ID)
		a.answer <- answer{records, err}
	}
}

// recordsOf is an intent and the instance that it is about, as the store has them. The caller holds the lock.
func (c *Control) recordsOf(id pando.IntentID) ([]pando.Record, error) {
	i, ok := c.world.Intents[id]
	if !ok {
		return nil, fmt.Errorf("%w: intent %s was not answered", pando.ErrUnavailable, id)
	}
	first, err := recordOf(i)
	if err != nil {
		return nil, err
	}
	o, ok := c.world.Instances[i.V.Instance]
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

// fencesOf are the conditions that the askers' hosts are still theirs. The key of an epoch is written once, so its creation
// is its last change.
func fencesOf(asks []*ask) (out []pando.Condition) {
	for _, a := range asks {
		v := pando.Condition{Key: a.by.Key, Modified: a.by.Created}
		if !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return out
}
