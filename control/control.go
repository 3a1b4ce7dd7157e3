// Package control is the cluster loop. It carries out the rules of the rooms scale and lifecycle
// for every service, and it answers operators. Package decide passes facts to the rules, and takes
// their moves down as one transaction.
//
// It never touches an instance, a packet or a file. It reads the registry, decides (decide.Decide is pure)
// and writes the registry. Agents do the rest. One control leads at a time, and its leadership
// fences every write.
package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime/debug"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/access"
	"pando.run/pando/control/billing"
	"pando.run/pando/control/decide"
	"pando.run/pando/control/members"
	"pando.run/pando/control/mirror"
	"pando.run/pando/control/requests"
	"pando.run/pando/control/status"
	"pando.run/pando/scale"
	"pando.run/pando/test/failpoint"
	"pando.run/pando/world"
)

// Config holds the settings and the drivers of a control.
type Config struct {
	Registry pando.Registry
	Peers    pando.Peers
	Clock    pando.Clock
	IDs      pando.IDs
	Log      *slog.Logger
	Vault    pando.Vault // nil: the cluster has no secrets
	// Authority identifies the authority of the cluster, for a store without a record of itself.
	Authority string
	Name      string // of this candidate, in the election
	// Heard returns the time since the last message from the agent of a host with a lease. Nil
	// means unknown.
	Heard func(ctx context.Context, h pando.HostName) (time.Duration, error)
	// Answers reports whether the server of another host answers. Nil: it is not asked.
	Answers func(ctx context.Context, at netip.Addr) bool
	// Writable reports whether the program of a spec may write to its folder. Nil means unknown. Only
	// the server's host is checked: programs and their folders have the same path on every host.
	Writable func(pando.Spec) bool
	// Taken returns the program of the server's host that takes packets at a port of it, and whether
	// there is one. Nil means unknown.
	Taken func(pando.HostPort) (owner string, taken bool)
	// Process adds the figures of this process: its store and its log. Nil: none.
	Process func(*pando.ServerFigures)
	// Audited gets each deed with its outcome, for a file of this host. Nil: there is none.
	Audited func(access.Deed) error
}

var (
	_ access.Operators = (*Control)(nil)
	_ access.Auditor   = (*Control)(nil)
	_ access.Biller    = (*Control)(nil)
)

// Control decides for the whole cluster while it leads. It answers operators at any time.
type Control struct {
	Registry  pando.Registry // its writes carry the deeds of their requests
	Log       *slog.Logger
	mirror    *mirror.Mirror
	authority string                     // of the cluster
	process   func(*pando.ServerFigures) // or nil
	*status.Reader
	*status.HostReader
	*requests.Requests
	*streams
	*members.Members
	*billing.Biller
	*confirmations
	counters *counters
	// asks holds asks that agents brought themselves and that wait for a decision.
	asks  map[pando.ServiceKey][]*ask
	door  scale.Door // the lock of the mirror guards it
	turns turns
	// thinking is held while a decision is computed and its room is reserved, and not while it is
	// written. So no two decisions fill the same room.
	thinking sync.Mutex
	workers  sync.WaitGroup
	slots    chan struct{}             // of the workers
	waiting  map[pando.ServiceKey]bool // a worker will look at it, once it has the turn
	term     pando.Fence               // of the leadership, or zero; the lock of the mirror guards it
	pulse    pulse
	// adoption is the wait for the hosts after a restore of the store.
	adoption struct {
		generation int
		until      time.Time
		adrift     map[pando.ServiceKey]time.Time // the end of the wait for instances of a service
	}
}

// workersMax bounds the decisions that the leader itself writes at the same time. Decisions about
// asks come on top, one for each service.
const workersMax = 32

// New returns a control. Run starts it.
func New(c Config) *Control {
	v := mirror.New(c.Registry, c.Clock, c.IDs, c.Log, c.Name)
	st := &status.Reader{Mirror: v}
	n := &counters{mirror: v, peers: c.Peers}
	return &Control{
		Registry: v.Registry, Log: v.Log, mirror: v, authority: c.Authority, process: c.Process, counters: n, Reader: st,
		HostReader: &status.HostReader{Mirror: v, Peers: c.Peers, Heard: c.Heard, Answers: c.Answers},
		streams:    newStreams(v, st, n, c.Peers), Members: members.NewMembers(v), Biller: billing.NewBills(v, c.Peers, n.errSilent),
		Requests: requests.New(requests.Config{Mirror: v, Status: st, Peers: c.Peers, Most: pando.ServicesMax, Vault: c.Vault,
			Writable: c.Writable, Taken: c.Taken, Audited: c.Audited}),
		confirmations: &confirmations{mirror: v, peers: c.Peers,
			known: map[pando.ServiceKey]*confirmation{}},
		asks: map[pando.ServiceKey][]*ask{}, slots: make(chan struct{}, workersMax),
		waiting: map[pando.ServiceKey]bool{},
	}
}

// HostWork returns the requests about what runs on hosts.
func (c *Control) HostWork() pando.HostOperators { return c }

// Run follows the registry until ctx ends. It decides while it is elected. It returns an error of
// its own if changes of the store do not arrive any more.
func (c *Control) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	wg.Add(1)
	go func() {
		defer wg.Done()
		c.campaign(ctx)
	}()
	wg.Go(func() { c.watchPauses(ctx) })
	wg.Go(func() { c.feed(ctx) })
	wg.Go(func() {
		if err := c.mirror.CheckFollower(ctx); ctx.Err() == nil {
			cancel(err)
		}
	})
	_ = world.Follow(ctx, c.mirror.Clock, c.mirror.Registry, pando.Root, c.mirror.Take, func(err error) {
		c.mirror.Log.Error("the store cannot be followed; it is tried again", "error", err)
	})
	return context.Cause(ctx)
}

func (c *Control) campaign(ctx context.Context) {
	for ctx.Err() == nil {
		term, end := context.WithCancel(ctx)
		fence, lost, err := c.mirror.Registry.Lead(term, "control", c.mirror.Name)
		if err == nil {
			c.mirror.Log.Info("leading", "candidate", c.mirror.Name)
			c.mirror.Figures.Terms.Add(1)
			c.lead(term, fence, lost)
		}
		end()
		if err := pando.Sleep(ctx, c.mirror.Clock, 100*time.Millisecond); err != nil {
			return
		}
	}
}

// lead decides until leadership or ctx ends.
func (c *Control) lead(ctx context.Context, fence pando.Fence, lost <-chan struct{}) {
	if !c.catchUp(ctx, fence, lost) {
		return
	}
	if err := c.identifyStore(ctx, fence); err != nil {
		c.mirror.Log.Error("the store has no readable record of itself: nothing is decided", "error", err)
		_ = pando.Sleep(ctx, c.mirror.Clock, identifyWait)
		return
	}
	c.serve(fence)
	defer c.serve(pando.Fence{})
	scaler := newScaler(c)
	defer scaler.end()
	ctx, stopReading := context.WithCancel(ctx)
	defer c.workers.Wait()
	defer stopReading()
	c.workers.Go(func() { c.Collect(ctx, fence) })
	for {
		c.switchLayout(ctx, fence, world.CurrentLayout())
		c.decideAll(ctx, fence)
		next := min(c.Members.LiftDrains(ctx, fence), c.mirror.MarkDue())
		scaler.step(ctx, fence)
		if c.mirror.IsDirty() {
			next = 0
		}
		timer, stop := c.mirror.Clock.After(min(next, scaler.next()))
		select {
		case <-ctx.Done():
		case <-lost:
		case <-c.mirror.Nudge:
		case <-timer:
		}
		stop()
		select {
		case <-ctx.Done():
			return
		case <-lost:
			c.mirror.Log.Warn("leadership lost")
			c.mirror.Figures.Lost.Add(1)
			return
		default:
		}
	}
}

// identifyWait is the wait after a failed attempt to give the store its identity.
const identifyWait = time.Second

// identifyStore gives a store without a record of itself an identity. Hosts recognise the store by it.
func (c *Control) identifyStore(ctx context.Context, fence pando.Fence) error {
	c.mirror.Mu.Lock()
	known, unread := c.mirror.World.Cluster.V.ID != "", c.mirror.World.Blind(pando.KindCluster)
	now := c.mirror.Clock.Now()
	c.mirror.Mu.Unlock()
	if known || unread != nil {
		return unread
	}
	return c.mirror.Commit(ctx, fence, pando.Txn{
		If: []pando.Condition{{Key: pando.ClusterKey}},
		Put: []pando.Stored{pando.Cluster{
			ID: c.mirror.IDs.Sequential(now), Generation: 1, Born: now, Layout: world.WrittenLayout(),
			Authority: c.authority,
		}},
	})
}

// catchUp waits until this control has seen all writes of former leaders, and marks every service.
func (c *Control) catchUp(ctx context.Context, fence pando.Fence, lost <-chan struct{}) bool {
	for {
		c.mirror.Mu.Lock()
		seen, news := c.mirror.World.Seen, c.mirror.Changed
		c.mirror.MarkAll()
		c.mirror.Mu.Unlock()
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

// decideAll starts a decision about every service that changed. It waits for none of them. A slow
// write delays its own service only.
func (c *Control) decideAll(ctx context.Context, fence pando.Fence) {
	for {
		s, ok := c.mirror.Next()
		if !ok {
			return
		}
		c.mirror.Mu.Lock()
		waits := c.waiting[s]
		c.waiting[s] = true
		c.mirror.Mu.Unlock()
		if waits {
			continue
		}
		select {
		case c.slots <- struct{}{}:
		case <-ctx.Done():
			c.begin(s)
			return
		}
		c.workers.Go(func() {
			defer func() { <-c.slots }()
			c.decideNext(ctx, fence, s)
			c.mirror.Wake() // there may be a new time to look
		})
	}
}

// decideNext decides about a service when it is its turn.
func (c *Control) decideNext(ctx context.Context, fence pando.Fence, s pando.ServiceKey) {
	taken, leave := c.turns.of(s)
	defer leave()
	select {
	case taken <- struct{}{}:
		c.begin(s)
		_ = c.decide(ctx, fence, s) // a failed decision is made again
		<-taken
	case <-ctx.Done():
		c.begin(s)
	}
}

// begin lets later changes of a service ask for another decision.
func (c *Control) begin(s pando.ServiceKey) {
	c.mirror.Mu.Lock()
	defer c.mirror.Mu.Unlock()
	delete(c.waiting, s)
}

// serve sets the leadership under which asks are answered. The zero fence means none.
func (c *Control) serve(term pando.Fence) {
	c.mirror.Mu.Lock()
	defer c.mirror.Mu.Unlock()
	c.term = term
}

// leading returns the leadership under which asks are answered, or the zero fence.
func (c *Control) leading() pando.Fence {
	c.mirror.Mu.RLock()
	defer c.mirror.Mu.RUnlock()
	return c.term
}

// decide makes and writes the next decision about a service, which also answers its asks. The
// caller has the turn of the service.
func (c *Control) decide(ctx context.Context, fence pando.Fence, s pando.ServiceKey) (err error) {
	t, asks, err := c.draw(s)
	defer func() { c.answer(asks, err) }()
	if len(t.Put)+len(t.Delete) == 0 {
		return err
	}
	failpoint.Hit("decided")
	if failed := c.mirror.Commit(ctx, fence, t); failed != nil {
		c.again(s, failed)
		return errors.Join(failed, err)
	}
	c.mirror.Mu.Lock()
	c.mirror.Written(s)
	c.mirror.Free(s)
	c.mirror.Mu.Unlock()
	if len(asks) > 0 {
		c.mirror.Later(s)
	}
	failpoint.Hit("decision written")
	return err
}

// draw computes the next decision about a service and reserves its room. It takes the asks that the
// decision answers. An error with a transaction means that the decision waits for instances without
// a record: the transaction shows the service to their hosts.
func (c *Control) draw(s pando.ServiceKey) (t pando.Txn, asks []*ask, err error) {
	c.thinking.Lock()
	defer c.thinking.Unlock()
	c.mirror.Mu.Lock()
	c.mirror.Free(s)
	asks = c.takeAsks(s)
	until, err := c.holdsStill(s)
	if err != nil {
		c.mirror.Wakes[s] = until
		if errors.Is(err, errAdrift) {
			t = decide.Introduce(c.mirror.World, s, c.mirror.Clock.Now(), c.mirror.IDs)
		}
		c.mirror.Mu.Unlock()
		return t, asks, err
	}
	c.mirror.Mu.Unlock()
	c.mirror.Mu.RLock() // the view of the operators stays open
	t, wake, err := c.think(s, intentsOf(asks))
	c.mirror.Mu.RUnlock()
	c.mirror.Mu.Lock()
	defer c.mirror.Mu.Unlock()
	if err != nil {
		c.mirror.Failed(s, err)
		c.mirror.Wakes[s] = c.mirror.Clock.Now().Add(frozenWait)
		return t, asks, err
	}
	t.If = append(t.If, fencesOf(asks)...)
	if wake.IsZero() {
		delete(c.mirror.Wakes, s)
	} else {
		c.mirror.Wakes[s] = wake
	}
	if len(t.Put)+len(t.Delete) == 0 {
		c.mirror.Written(s)
		return t, asks, nil
	}
	c.mirror.Reserve(s, t)
	return t, asks, nil
}

// think calls Decide. A panic of a rule concerns one service, and must not end the decisions about
// all others. The caller holds the lock for reading.
func (c *Control) think(
	s pando.ServiceKey, asks []pando.Intent,
) (t pando.Txn, wake time.Time, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("%w: a rule failed: %v", pando.ErrFrozen, cause)
			c.mirror.Log.Error("no decision about a service is made: this is a fault of pando",
				"service", s, "cause", cause, "stack", string(debug.Stack()))
		}
	}()
	t, wake = decide.Decide(c.mirror.World, s, c.mirror.Clock.Now(), c.mirror.IDs, asks...)
	return t, wake, nil
}

// again schedules another look after a commit that failed. After a conflict, the newer record
// arrives soon.
func (c *Control) again(s pando.ServiceKey, err error) {
	wait := 5 * time.Millisecond
	if !errors.Is(err, pando.ErrConflict) {
		wait = 500 * time.Millisecond
		c.mirror.Log.Warn("a decision could not be written", "service", s, "error", err)
	}
	c.mirror.Mu.Lock()
	defer c.mirror.Mu.Unlock()
	if !errors.Is(err, pando.ErrUnavailable) {
		c.mirror.Free(s) // otherwise it may be in the store: its room stays taken until the next decision
	}
	c.mirror.Failed(s, err)
	c.mirror.Wakes[s] = c.mirror.Clock.Now().Add(wait)
}
