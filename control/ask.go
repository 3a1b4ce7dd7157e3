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
}

// Answer implements pando.Decider. The ask is decided with all else that is known of its service, and tried once: a decision
// that collides with news is left to the asker, who writes the ask and waits like everybody.
func (c *Control) Answer(ctx context.Context, by pando.Fence, i pando.Intent) ([]pando.Record, error) {
	if i.State != pando.IntentAsked || by == (pando.Fence{}) {
		return nil, fmt.Errorf("%w: intent %s is %q and comes from %q; want one that is asked, from a host", pando.ErrInvalid, i.ID, i.State, by.Key)
	}
	if err := c.turn(ctx); err != nil {
		return nil, fmt.Errorf("answer a %s of %s: %w: %w", i.Verb, i.Service, pando.ErrUnavailable, err)
	}
	defer func() { <-c.deciding }()
	if c.term == (pando.Fence{}) {
		return nil, fmt.Errorf("answer a %s of %s: %w: this server does not lead", i.Verb, i.Service, pando.ErrUnavailable)
	}
	if err := c.decide(ctx, c.term, i.Service, ask{i, by}); err != nil {
		return nil, err
	}
	defer c.wake() // something may follow from the answer
	return c.recordsOf(i.ID)
}

// recordsOf is an intent and the instance that it is about, as the store has them.
func (c *Control) recordsOf(id pando.IntentID) ([]pando.Record, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
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
