// Package control is the cluster loop. It composes the rooms scale and lifecycle into decisions
// about every service, and it answers operators.
//
// It never touches an instance, a packet or a file. It reads the registry, decides (Decide is pure)
// and writes the registry. Agents do the rest. One control leads at a time, and its leadership
// fences every write.
package control

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
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
	Config
	creating  chan struct{} // full while a new service is written, so that the limit of services holds
	counting  sync.Mutex    // guards the two below, also while they are read from the hosts
	counted   []pando.EndpointCounters
	countedAt time.Time
	// unwritten counts the decisions about a service that this control failed to write.
	unwritten map[pando.ServiceKey]unwritten
	full      time.Time // since when the store is full, or zero

	mu      sync.Mutex
	world   *world.World
	queue   []pando.ServiceKey        // services that need a decision
	dirty   map[pando.ServiceKey]bool // the members of queue
	wakes   map[pando.ServiceKey]time.Time
	changed chan struct{} // closed and replaced at every change of the world
	nudge   chan struct{}
	// asks holds asks that agents brought themselves and that wait for a decision.
	asks     map[pando.ServiceKey][]*ask
	deciding chan struct{} // full from a decision until it is written
	// term is the fence of the leadership, or zero. Only the holder of the turn uses it.
	term      pando.Fence
	left      map[pando.HostName]time.Time // since when a member is away
	admitting sync.Mutex
	pulse     pulse
}

// New returns a control. Run starts it.
func New(c Config) *Control {
	return &Control{
		Config: c, world: world.New(),
		dirty: map[pando.ServiceKey]bool{}, wakes: map[pando.ServiceKey]time.Time{},
		changed: make(chan struct{}), nudge: make(chan struct{}, 1), deciding: make(chan struct{}, 1),
		left: map[pando.HostName]time.Time{}, asks: map[pando.ServiceKey][]*ask{},
		creating: make(chan struct{}, 1), unwritten: map[pando.ServiceKey]unwritten{},
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
	return world.Follow(ctx, c.Clock, c.Registry, pando.Root, c.take)
}

func (c *Control) take(b pando.Batch, reset bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if reset {
		c.world = world.New()
	}
	// This control has already considered its own writes.
	news := slices.DeleteFunc(slices.Clone(b.Changes), c.world.Knows)
	if err := c.world.Apply(b.Changes, b.Revision); err != nil {
		c.Log.Error("a record cannot be read and is left out", "error", err)
	}
	for _, r := range news {
		c.touch(r.Key)
		c.comeAndGo(r)
	}
	if reset {
		c.markAll()
	}
	close(c.changed)
	c.changed = make(chan struct{})
	c.wake()
}

// touch marks the services that a change concerns: its own, or all when a host joins or leaves.
func (c *Control) touch(k pando.Key) {
	if k.Kind() == pando.KindHost {
		c.markAll()
		return
	}
	if s, ok := k.Service(); ok {
		c.mark(s)
	}
}

// mark appends a service to the queue of decisions. The caller holds the lock.
func (c *Control) mark(s pando.ServiceKey) {
	if !c.dirty[s] {
		c.dirty[s] = true
		c.queue = append(c.queue, s)
	}
}

func (c *Control) markAll() {
	for _, s := range c.world.Names() {
		c.mark(s)
	}
}

func (c *Control) wake() {
	select {
	case c.nudge <- struct{}{}:
	default:
	}
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

// markDue marks the services with a wake time in the past.
func (c *Control) markDue() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.Clock.Now()
	for _, s := range slices.SortedFunc(maps.Keys(c.wakes), pando.ServiceKey.Compare) {
		if at := c.wakes[s]; !now.Before(at) {
			delete(c.wakes, s)
			c.mark(s)
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

func (c *Control) nextDirty() (pando.ServiceKey, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.queue) == 0 {
		return pando.ServiceKey{}, false
	}
	s := c.queue[0]
	c.queue = c.queue[1:]
	delete(c.dirty, s)
	return s, true
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
	if err = c.holdsStill(s); err != nil {
		c.wakes[s] = c.pulse.until
		c.mu.Unlock()
		return err
	}
	t, wake := Decide(c.world, s, c.Clock.Now(), c.IDs, intentsOf(asks)...)
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

// commit writes as the leader and applies the result at once, so that the next decision uses it.
func (c *Control) commit(ctx context.Context, fence pando.Fence, t pando.Txn) error {
	t.Fence = fence
	at, err := c.Registry.Commit(ctx, t)
	c.outcome(err)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.took(t, at)
	return nil
}

// took applies this control's own write to the world. The watch delivers it again later and then
// changes nothing. The caller holds the lock.
func (c *Control) took(t pando.Txn, at pando.StoreRevision) {
	c.world.Committed(t, at)
	for _, v := range t.Put {
		c.touch(v.Key())
	}
	for _, k := range t.Delete {
		c.touch(k)
	}
}

// laterWait delays the work that follows from an answer, so that it does not compete with the
// answer and the start for the processor. A decision looks at all of its service, so the delay
// holds back no further asks.
const laterWait = 5 * time.Millisecond

// later postpones the next look at a service after a decision was written.
func (c *Control) later(s pando.ServiceKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dirty[s] {
		delete(c.dirty, s)
		c.queue = slices.DeleteFunc(c.queue, func(o pando.ServiceKey) bool { return o == s })
	}
	if at, next := c.wakes[s], c.Clock.Now().Add(laterWait); at.IsZero() || next.Before(at) {
		c.wakes[s] = next
	}
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
