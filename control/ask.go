package control

import (
	"context"
	"fmt"
	"slices"

	"pando.run/pando"
)

var _ pando.Decider = (*Control)(nil)

// ask is one that an agent brings itself instead of writing it into the store first.
type ask struct {
	intent pando.Intent
	by     pando.Fence
	answer chan<- answer // takes one without waiting
}

type answer struct {
	records []pando.Record
	err     error
}

// Answer implements pando.Decider. The ask is decided with all else that is known of its service, and tried once: a decision
// that collides with news is left to the asker, who writes the ask and waits like everybody.
func (c *Control) Answer(ctx context.Context, by pando.Fence, i pando.Intent) ([]pando.Record, error) {
	if i.State != pando.IntentAsked || by == (pando.Fence{}) {
		return nil, fmt.Errorf("%w: intent %s is %q and comes from %q; want one that is asked, from a host", pando.ErrInvalid, i.ID, i.State, by.Key)
	}
	c.mu.Lock()
	_, known := c.world.Services[i.Service]
	if !c.leading || !known {
		c.mu.Unlock()
		return nil, fmt.Errorf("answer a %s of %s: %w: this server does not lead, or has not heard of the service", i.Verb, i.Service, pando.ErrUnavailable)
	}
	answered := make(chan answer, 1)
	c.asks[i.Service] = append(c.asks[i.Service], ask{i, by, answered})
	c.dirty[i.Service] = true
	c.wake()
	c.mu.Unlock()
	select {
	case v := <-answered:
		return v.records, v.err
	case <-ctx.Done():
		return nil, fmt.Errorf("answer a %s of %s: %w: %w", i.Verb, i.Service, pando.ErrUnavailable, ctx.Err())
	}
}

// hearAsks begins to take asks, or stops and sends those away that have no answer yet.
func (c *Control) hearAsks(leading bool) {
	c.mu.Lock()
	c.leading = leading
	left := c.asks
	c.asks = map[pando.ServiceKey][]ask{}
	c.mu.Unlock()
	for _, asks := range left {
		c.answer(asks, fmt.Errorf("%w: leadership was lost", pando.ErrUnavailable))
	}
}

// answer tells askers what has become of their asks, after the decision about them was written or could not be.
func (c *Control) answer(asks []ask, err error) {
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

func recordOf[T pando.Stored](v pando.Versioned[T]) (pando.Record, error) {
	b, err := pando.Encode(v.V)
	return pando.Record{Key: v.V.Key(), Value: b, Modified: v.Modified}, err
}

func intentsOf(asks []ask) (out []pando.Intent) {
	for _, a := range asks {
		out = append(out, a.intent)
	}
	return out
}

// fencesOf are the conditions that the askers' hosts are still theirs. The key of an epoch is written once, so its creation
// is its last change.
func fencesOf(asks []ask) (out []pando.Condition) {
	for _, a := range asks {
		v := pando.Condition{Key: a.by.Key, Modified: a.by.Created}
		if !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return out
}
