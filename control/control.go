// Package control is the cluster loop: it composes what the rooms know (scale, lifecycle) into decisions about every
// service, and answers operators.
//
// It never touches an instance, a packet or a file: it reads the registry, decides (Decide is pure) and writes the
// registry; agents do the rest. One control leads at a time, and every one of its writes is fenced by its leadership.
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
	"pando.run/pando/world"
)

// Config is what a control needs.
type Config struct {
	Registry pando.Registry
	Peers    pando.Peers
	Clock    pando.Clock
	IDs      pando.IDs
	Log      *slog.Logger
	Name     string // of this candidate, in the election
	// Heard says how long ago the agent of a host that has its lease was heard of; nil: nobody knows.
	Heard func(ctx context.Context, h pando.HostName) (time.Duration, error)
	// Writable says whether the user of a spec may write to a folder; nil: not known. It is asked
	// on the server's host alone: programs and their folders lie at the same path on every host.
	Writable func(dir, user string) bool
}

// Control decides for the whole cluster while it leads, and answers operators always.
type Control struct {
	Config
	creating  chan struct{} // is full while a new service is written, so that the limit of services holds
	counting  sync.Mutex    // guards the two below, also while they are read from the hosts
	counted   []pando.EndpointCounters
	countedAt time.Time
	unwritten map[pando.ServiceKey]unwritten // decisions about a service that this control could not write
	full      time.Time                      // since when the store takes nothing more; zero: it does

	mu        sync.Mutex
	world     *world.World
	queue     []pando.ServiceKey        // to be decided about
	dirty     map[pando.ServiceKey]bool // what is in the queue
	wakes     map[pando.ServiceKey]time.Time
	changed   chan struct{} // closed and replaced at every change of the world
	nudge     chan struct{}
	asks      map[pando.ServiceKey][]*ask  // that came straight from agents and nobody has taken yet
	deciding  chan struct{}                // is full from a decision until it is written
	term      pando.Fence                  // of the leadership, zero: none; known to who decides
	left      map[pando.HostName]time.Time // since when a member is away
	admitting sync.Mutex
	pulse     pulse
}

// New returns a control; Run makes it work.
func New(c Config) *Control {
	return &Control{
		Config: c, world: world.New(),
		dirty: map[pando.ServiceKey]bool{}, wakes: map[pando.ServiceKey]time.Time{},
		changed: make(chan struct{}), nudge: make(chan struct{}, 1), deciding: make(chan struct{}, 1),
		left: map[pando.HostName]time.Time{}, asks: map[pando.ServiceKey][]*ask{},
		creating: make(chan struct{}, 1), unwritten: map[pando.ServiceKey]unwritten{},
	}
}

// Run follows the registry and, whenever it is elected, decides; until ctx ends.
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
	news := slices.DeleteFunc(slices.Clone(b.Changes), c.world.Knows) // what this control wrote it has thought about
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

// touch marks the services that a change concerns: its own, or all when hosts come and go.
func (c *Control) touch(k pando.Key) {
	if k.Kind() == pando.KindHost {
		c.markAll()
		return
	}
	if s, ok := k.Service(); ok {
		c.mark(s)
	}
}

// mark puts a service behind those that are to be decided about. The caller holds the lock.
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
		scaler.step(ctx, fence) // whatever woke it: news that never end must not keep it from looking
		c.markDue()
	}
}

// catchUp waits until this control has seen all that former leaders wrote, and marks every service.
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

// markDue marks the services whose wake time has come.
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

// decideAll decides about every service that changed, and says after how long the next one is due.
func (c *Control) decideAll(ctx context.Context, fence pando.Fence) time.Duration {
	for {
		s, ok := c.nextDirty()
		if !ok {
			break
		}
		if c.turn(ctx) != nil {
			break
		}
		_ = c.decide(ctx, fence, s) // what could not be written is decided again
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

// serve says by which leadership asks are answered from now on; by none with the zero fence.
func (c *Control) serve(term pando.Fence) {
	c.deciding <- struct{}{}
	c.term = term
	<-c.deciding
}

// turn makes the caller the one who decides, until it empties the channel.
func (c *Control) turn(ctx context.Context) error {
	select {
	case c.deciding <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// decide makes the next decision about a service, which answers what is asked of it, and writes it. The caller is the one
// who decides.
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
	pando.Failpoint("decided")
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
	pando.Failpoint("decision written")
	return nil
}

// commit writes as the leader and takes the result over at once, so that the next decision rests on it.
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

// took takes over what this control has written: the watch, which tells of it later, brings nothing new then. The caller holds
// the lock.
func (c *Control) took(t pando.Txn, at pando.StoreRevision) {
	c.world.Committed(t, at)
	for _, v := range t.Put {
		c.touch(v.Key())
	}
	for _, k := range t.Delete {
		c.touch(k)
	}
}

// laterWait is how long what may follow from an answer waits, so that it does not compete with the answer and the start for
// the processor. A decision looks at all of its service, so more asks meanwhile keep nothing waiting.
const laterWait = 5 * time.Millisecond

// later puts off the next look at a service of which a decision was just written.
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

// again schedules another look after a commit that failed. A conflict means that news is on its way.
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
