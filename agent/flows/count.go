package flows

import (
	"context"
	"sync"
	"time"

	"pando.run/pando"
)

// Counter counts the flows of all instances of this host that drain. It works in rounds. A round
// lists the sockets of each instance that waits for a count. Then it sweeps the connection table
// once for all those without a socket.
//
// An instance that may have no flows left waits for the round in progress and a rest of at most
// promptRestMax. The cost of counting other instances does not lengthen that.
type Counter struct {
	sweeper *Sweeper
	clock   pando.Clock
	worked  func() time.Duration
	filled  chan struct{} // holds an element when there may be an ask

	mu      sync.Mutex
	prompt  queue // of instances that may have no flows left
	regular queue // of the others
}

// queue holds the instances that wait for the next round of a kind.
type queue struct {
	asks []Ask
	from time.Time // the next round may begin
}

// Ask is the wait of one instance for its count.
type Ask struct {
	Instance pando.InstanceID
	Box      pando.Sandbox
	Answer   func(Count) // must not wait
}

// The bounds of the rest after a round. A prompt round rests for as long as it worked, so that a
// mass of drains takes half a processor. A regular one rests for countShare times as long.
const (
	promptRestMax  = time.Second
	regularRestMax = 30 * time.Second
)

// NewCounter returns a counter without asks. Run answers them. worked returns the processor time of
// this process; nil: it counts as busy all the time.
func NewCounter(s *Sweeper, clock pando.Clock, worked func() time.Duration) *Counter {
	c := &Counter{sweeper: s, clock: clock, worked: worked, filled: make(chan struct{}, 1)}
	if c.worked == nil {
		c.worked = func() time.Duration { return time.Duration(clock.Now().UnixNano()) }
	}
	return c
}

// Queue queues an instance for a count.
func (c *Counter) Queue(q Ask, prompt bool) {
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

// Run counts until ctx ends.
func (c *Counter) Run(ctx context.Context) {
	for ctx.Err() == nil {
		batch, prompt, wait := c.next(c.clock.Now())
		if len(batch) > 0 {
			c.round(ctx, batch, prompt)
			continue
		}
		var timer <-chan time.Time
		stop := func() {}
		if wait > 0 {
			timer, stop = c.clock.After(wait)
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
func (c *Counter) next(now time.Time) (batch []Ask, prompt bool, wait time.Duration) {
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
func (c *Counter) round(ctx context.Context, batch []Ask, prompt bool) {
	began, worked := c.clock.Now(), c.worked()
	spent := func(since time.Time, before time.Duration) time.Duration {
		// A busy machine makes a count long, and not dear.
		return min(c.clock.Now().Sub(since), c.worked()-before)
	}
	results, idle := make([]Count, len(batch)), false
	for n, q := range batch {
		at, before := c.clock.Now(), c.worked()
		one := Count{Began: began}
		one.Flows, one.Err = q.Box.Flows(ctx)
		one.Cost = spent(at, before)
		results[n] = one
		idle = idle || one.Err == nil && one.Flows == 0
	}
	if idle {
		err := c.sweeper.Sweep(ctx, began)
		report := c.sweeper.Last()
		for n := range results {
			if r := &results[n]; r.Err == nil && r.Flows == 0 {
				r.Flows, r.Err = report.Flows[batch[n].Instance], err
			}
		}
	}
	took := spent(began, worked)
	c.mu.Lock()
	if end := c.clock.Now(); prompt {
		c.prompt.from = end.Add(min(took, promptRestMax))
	} else {
		c.regular.from = end.Add(min(countShare*took, regularRestMax))
	}
	c.mu.Unlock()
	for n, q := range batch {
		q.Answer(results[n])
	}
}

// Count is the result of a count of an instance's flows.
type Count struct {
	Began time.Time
	Flows int
	Err   error
	Cost  time.Duration // processor time
}
