package agent

import (
	"context"
	"sync"
	"time"

	"pando.run/pando"
)

// counts counts the flows of all instances of this host that drain. It works in rounds. A round
// lists the sockets of each instance that waits for a count. Then it sweeps the connection table
// once for all those without a socket.
//
// An instance that may have no flows left waits for the round in progress and a rest of at most
// promptRestMax, whatever the counts of other instances cost.
type counts struct {
	a      *Agent
	worked func() time.Duration
	filled chan struct{} // holds an element when there may be an ask

	mu      sync.Mutex
	prompt  queue // of instances that may have no flows left
	regular queue // of the others
}

// queue holds the instances that wait for the next round of a kind.
type queue struct {
	asks []countAsk
	from time.Time // the next round may begin
}

// countAsk is the wait of one instance for its count.
type countAsk struct {
	r   *runner
	box pando.Sandbox
}

// The bounds of the rest after a round. A prompt round rests for as long as it worked, so that a mass
// of drains takes half a processor. A regular one rests for countShare times as long.
const (
	promptRestMax  = time.Second
	regularRestMax = 30 * time.Second
)

func newCounts(a *Agent) *counts {
	c := &counts{a: a, worked: a.Worked, filled: make(chan struct{}, 1)}
	if c.worked == nil {
		c.worked = func() time.Duration { return time.Duration(a.Clock.Now().UnixNano()) }
	}
	return c
}

// ask queues an instance for a count. The message flowsCounted has the result.
func (c *counts) ask(q countAsk, prompt bool) {
	c.mu.Lock()
	to := &c.regular
	if prompt {
		to = &c.prompt
	}
	to.asks = append(to.asks, q)
	c.mu.Unlock()
	select {
	case c.filled <- struct{}{}:
	default:
	}
}

// run counts until ctx ends.
func (c *counts) run(ctx context.Context) {
	for ctx.Err() == nil {
		batch, prompt, wait := c.next(c.a.Clock.Now())
		if len(batch) > 0 {
			c.round(ctx, batch, prompt)
			continue
		}
		var timer <-chan time.Time
		stop := func() {}
		if wait > 0 {
			timer, stop = c.a.Clock.After(wait)
		}
		select {
		case <-ctx.Done():
		case <-c.filled:
		case <-timer:
		}
		stop()
	}
}

// next takes the instances of the next round. wait is the time until one may begin; 0: none waits.
func (c *counts) next(now time.Time) (batch []countAsk, prompt bool, wait time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, q := range []*queue{&c.prompt, &c.regular} {
		if len(q.asks) == 0 {
			continue
		}
		rest := q.from.Sub(now)
		if rest <= 0 {
			batch, q.asks = q.asks, nil
			return batch, q == &c.prompt, 0
		}
		if wait == 0 || rest < wait {
			wait = rest
		}
	}
	return nil, false, wait
}

// round counts the flows of some instances.
func (c *counts) round(ctx context.Context, batch []countAsk, prompt bool) {
	began, worked := c.a.Clock.Now(), c.worked()
	spent := func(since time.Time, before time.Duration) time.Duration {
		// A busy machine makes a count long, and not dear.
		return min(c.a.Clock.Now().Sub(since), c.worked()-before)
	}
	results, idle := make([]flowsCounted, len(batch)), false
	for n, q := range batch {
		at, before := c.a.Clock.Now(), c.worked()
		one := flowsCounted{began: began}
		one.flows, one.err = q.box.Flows(ctx)
		one.cost = spent(at, before)
		results[n] = one
		idle = idle || one.err == nil && one.flows == 0
	}
	if idle {
		err := c.a.sweeper.sweep(ctx, began)
		report := c.a.sweeper.last()
		for n := range results {
			if r := &results[n]; r.err == nil && r.flows == 0 {
				r.flows, r.err = report.Flows[batch[n].r.id], err
			}
		}
	}
	took := spent(began, worked)
	c.mu.Lock()
	if end := c.a.Clock.Now(); prompt {
		c.prompt.from = end.Add(min(took, promptRestMax))
	} else {
		c.regular.from = end.Add(min(countShare*took, regularRestMax))
	}
	c.mu.Unlock()
	for n, q := range batch {
		q.r.post(results[n])
	}
}

// flowsCounted is the result of a count of an instance's flows.
type flowsCounted struct {
	began time.Time
	flows int
	err   error
	cost  time.Duration // processor time
}

func (flowsCounted) isMessage() {}
