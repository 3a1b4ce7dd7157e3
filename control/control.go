// Package control is the cluster loop. It carries out the rules of the rooms scale and lifecycle
// for every service, and it answers operators. A draft passes facts to the rules, and a ledger
// takes their moves down as one transaction.
//
// It never touches an instance, a packet or a file. It reads the registry, decides (Decide is pure)
// and writes the registry. Agents do the rest. One control leads at a time, and its leadership
// fences every write.
package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/failpoint"
	"pando.run/pando/world"
)

// Config holds the settings and the drivers of a control.
type Config struct {
	Registry pando.Registry
	Peers    pando.Peers
	Clock    pando.Clock
	IDs      pando.IDs
	Log      *slog.Logger
	Name     string // of this candidate, in the election
	// Heard returns the time since the last message from the agent of a host with a lease. Nil
	// means unknown.
	Heard func(ctx context.Context, h pando.HostName) (time.Duration, error)
	// Writable reports whether the user of a spec may write to a folder. Nil means unknown. Only the
	// server's host is checked, because programs and their folders have the same path on every host.
	Writable func(dir, user string) bool
}

// Control decides for the whole cluster while it leads. It answers operators at any time.
type Control struct {
	*view
	*operators
	*streams
	*members
	counters *counters
	// asks holds asks that agents brought themselves and that wait for a decision.
	asks     map[pando.ServiceKey][]*ask
	deciding chan struct{} // full from a decision until it is written
	// term is the fence of the leadership, or zero. Only the holder of the turn uses it.
	term  pando.Fence
	pulse pulse
}

// New returns a control. Run starts it.
func New(c Config) *Control {
	v := newView(c)
	n := &counters{view: v}
	return &Control{
		view: v, counters: n, streams: &streams{view: v, counters: n}, members: &members{view: v},
		operators: &operators{view: v, creating: make(chan struct{}, 1), most: pando.ServicesMax},
		asks:      map[pando.ServiceKey][]*ask{}, deciding: make(chan struct{}, 1),
	}
}

// Run follows the registry until ctx ends. It decides while it is elected.
func (c *Control) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Add(1)
	go func() {
		defer wg.Done()
		c.campaign(ctx)
	}()
	wg.Go(func() { c.watchPauses(ctx) })
	return world.Follow(ctx, c.Clock, c.Registry, pando.Root, c.take, func(err error) {
		c.Log.Error("the store cannot be followed; it is tried again", "error", err)
	})
}

func (c *Control) campaign(ctx context.Context) {
	for ctx.Err() == nil {
		term, end := context.WithCancel(ctx)
		fence, lost, err := c.Registry.Lead(term, "control", c.Name)
		if err == nil {
			c.Log.Info("leading", "candidate", c.Name)
			c.lead(term, fence, lost)
		}
		end()
		if err := pando.Sleep(ctx, c.Clock, 100*time.Millisecond); err != nil {
			return
		}
	}
}

// lead decides until leadership or ctx ends.
func (c *Control) lead(ctx context.Context, fence pando.Fence, lost <-chan struct{}) {
	if !c.catchUp(ctx, fence, lost) {
		return
	}
	if err := c.baptise(ctx, fence); err != nil {
		c.Log.Error("the store has no readable record of itself: nothing is decided", "error", err)
		_ = pando.Sleep(ctx, c.Clock, baptiseWait)
		return
	}
	c.serve(fence)
	defer c.serve(pando.Fence{})
	scaler := newScaler(c)
	defer scaler.end()
	ctx, stopReading := context.WithCancel(ctx)
	defer stopReading()
	for {
		next := c.decideAll(ctx, fence)
		timer, stop := c.Clock.After(min(next, scaler.next()))
		select {
		case <-ctx.Done():
		case <-lost:
		case <-c.nudge:
		case <-timer:
		}
		stop()
		select {
		case <-ctx.Done():
			return
		case <-lost:
			c.Log.Warn("leadership lost")
			return
		default:
		}
		scaler.step(ctx, fence) // at every wake: an endless stream of changes must not starve the scaler
		c.markDue()
	}
}

// baptiseWait is the wait after a failed attempt to give the store its identity.
const baptiseWait = time.Second

// baptise gives a store without a record of itself an identity. Hosts recognise the store by it.
func (c *Control) baptise(ctx context.Context, fence pando.Fence) error {
	c.mu.Lock()
	known, unread := c.world.Cluster.V.ID != "", c.world.Blind(pando.KindCluster)
	now := c.Clock.Now()
	c.mu.Unlock()
	if known || unread != nil {
		return unread
	}
	return c.commit(ctx, fence, pando.Txn{
		If:  []pando.Condition{{Key: pando.ClusterKey}},
		Put: []pando.Stored{pando.Cluster{ID: c.IDs.Sequential(now), Generation: 1, Born: now}},
	})
}

// catchUp waits until this control has seen all writes of former leaders, and marks every service.
func (c *Control) catchUp(ctx context.Context, fence pando.Fence, lost <-chan struct{}) bool {
	for {
		c.mu.Lock()
		seen, news := c.world.Seen, c.changed
		c.markAll()
		c.mu.Unlock()
		if seen >= fence.Created {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-lost:
			return false
		case <-news:
		}
	}
}

// decideAll decides about every service that changed and returns the time until the next one is
// due.
func (c *Control) decideAll(ctx context.Context, fence pando.Fence) time.Duration {
	for {
		s, ok := c.nextDirty()
		if !ok {
			break
		}
		if c.turn(ctx) != nil {
			break
		}
		_ = c.decide(ctx, fence, s) // a failed decision is made again
		<-c.deciding
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	next := time.Minute
	for _, at := range c.wakes {
		next = min(next, max(time.Millisecond, at.Sub(c.Clock.Now())))
	}
	return next
}

// serve sets the leadership under which asks are answered. The zero fence means none.
func (c *Control) serve(term pando.Fence) {
	c.deciding <- struct{}{}
	c.term = term
	<-c.deciding
}

// turn waits until the caller may decide. The caller ends its turn by emptying the channel.
func (c *Control) turn(ctx context.Context) error {
	select {
	case c.deciding <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// decide makes and writes the next decision about a service, which also answers its asks. The
// caller has the turn.
func (c *Control) decide(ctx context.Context, fence pando.Fence, s pando.ServiceKey) (err error) {
	c.mu.Lock()
	asks := c.takeAsks(s)
	defer func() { c.answer(asks, err) }()
	if until, err := c.holdsStill(s); err != nil {
		c.wakes[s] = until
		c.mu.Unlock()
		return err
	}
	t, wake, err := c.think(s, intentsOf(asks))
	if err != nil {
		c.failed(s, err)
		c.wakes[s] = c.Clock.Now().Add(frozenWait)
		c.mu.Unlock()
		return err
	}
	t.If = append(t.If, fencesOf(asks)...)
	if wake.IsZero() {
		delete(c.wakes, s)
	} else {
		c.wakes[s] = wake
	}
	if len(t.Put)+len(t.Delete) == 0 {
		c.written(s)
		c.mu.Unlock()
		return nil
	}
	c.mu.Unlock()
	failpoint.Hit("decided")
	if err = c.commit(ctx, fence, t); err != nil {
		c.again(s, err)
		return err
	}
	c.mu.Lock()
	c.written(s)
	c.mu.Unlock()
	if len(asks) > 0 {
		c.later(s)
	}
	failpoint.Hit("decision written")
	return nil
}

// think calls Decide. A panic of a rule concerns one service, and must not end the decisions about
// all others. The caller holds the lock.
func (c *Control) think(
	s pando.ServiceKey, asks []pando.Intent,
) (t pando.Txn, wake time.Time, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("%w: a rule failed: %v", pando.ErrFrozen, cause)
			c.Log.Error("no decision about a service is made: this is a fault of pando",
				"service", s, "cause", cause, "stack", string(debug.Stack()))
		}
	}()
	t, wake = Decide(c.world, s, c.Clock.Now(), c.IDs, asks...)
	return t, wake, nil
}

// again schedules another look after a commit that failed. After a conflict, the newer record
// arrives soon.
func (c *Control) again(s pando.ServiceKey, err error) {
	wait := 5 * time.Millisecond
	if !errors.Is(err, pando.ErrConflict) {
		wait = 500 * time.Millisecond
		c.Log.Warn("a decision could not be written", "service", s, "error", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed(s, err)
	c.wakes[s] = c.Clock.Now().Add(wait)
}
