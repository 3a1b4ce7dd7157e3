package control

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/world"
)

// view is this process's copy of the store, with the services that need a decision. The loop, the
// operators, the members and the streams share it. Its lock guards all but the settings.
type view struct {
	Registry pando.Registry
	Clock    pando.Clock
	IDs      pando.IDs
	Log      *slog.Logger
	Name     string // of this host, in the audit
	mu       sync.RWMutex
	world    *world.World
	changed  chan struct{} // closed and replaced at every change of the world
	nudge    chan struct{}
	queue    []pando.ServiceKey        // services that need a decision
	dirty    map[pando.ServiceKey]bool // the members of queue
	wakes    map[pando.ServiceKey]time.Time
	left     map[pando.HostName]time.Time // since when a member is away
	// unwritten counts the decisions about a service that this control failed to write.
	unwritten map[pando.ServiceKey]unwritten
	// reserved are the decisions on their way to the store, and those without an answer of it.
	reserved map[pando.ServiceKey]pando.Txn
	full     time.Time // since when the store is full, or zero
	tally    tally
	// listeners follow each change of the world, with the lock held.
	listeners []func(w *world.World, b pando.Batch, reset bool)
}

func newView(c Config) *view {
	v := &view{
		Clock: c.Clock, IDs: c.IDs, Log: c.Log, Name: c.Name,
		world: world.New(), changed: make(chan struct{}), nudge: make(chan struct{}, 1),
		dirty: map[pando.ServiceKey]bool{}, wakes: map[pando.ServiceKey]time.Time{},
		left: map[pando.HostName]time.Time{}, unwritten: map[pando.ServiceKey]unwritten{},
		reserved: map[pando.ServiceKey]pando.Txn{},
		tally:    tally{decisions: map[pando.ServiceKey]map[pando.DecisionKind]uint64{}},
	}
	v.Registry = auditing{c.Registry, v}
	return v
}

func (c *view) take(b pando.Batch, reset bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if reset {
		c.world = c.world.Next()
	}
	c.world.At(c.Clock.Now())
	// This control has already considered its own writes.
	news := slices.DeleteFunc(slices.Clone(b.Changes), c.world.Knows)
	if err := c.world.Apply(b.Changes, b.Revision); err != nil {
		c.Log.Error("a record cannot be read: its service is frozen", "error", err)
	}
	for _, r := range news {
		if !reset {
			c.touch(r.Key)
		}
		c.comeAndGo(r)
	}
	c.tally.count(c.world, b, reset)
	for _, heard := range c.listeners {
		heard(c.world, b, reset)
	}
	if reset {
		c.markAll()
		for _, t := range c.reserved {
			c.world.Reserve(t)
		}
	}
	close(c.changed)
	c.changed = make(chan struct{})
	c.wake()
}

// touch marks the services that a change concerns: its own, those of a changed tenant, or those that the change of a host's
// record may concern. The first and the last host concern all.
func (c *view) touch(k pando.Key) {
	if k.Kind() == pando.KindTenant {
		c.touchTenant(pando.Tenant(k[len(pando.TenantKey("")):]))
		return
	}
	if k.Kind() == pando.KindMember { // a drain begins or ends, or its grants change
		for _, s := range c.world.Concerned(pando.HostName(k[len(pando.MemberKey("")):])) {
			c.mark(s)
		}
		return
	}
	if h, ok := k.Host(); ok {
		if len(c.world.Hosts) < 2 {
			c.markAll()
			return
		}
		for _, s := range c.world.Concerned(h) {
			c.mark(s)
		}
		return
	}
	if s, ok := k.Service(); ok {
		c.mark(s)
	}
}

// touchTenant marks the services of a tenant: its quota or its VIPs changed.
func (c *view) touchTenant(t pando.Tenant) {
	for _, s := range c.world.Names() {
		if s.Tenant == t {
			c.mark(s)
		}
	}
}

// mark appends a service to the queue of decisions. The caller holds the lock.
func (c *view) mark(s pando.ServiceKey) {
	if !c.dirty[s] {
		c.dirty[s] = true
		c.queue = append(c.queue, s)
	}
}

func (c *view) markAll() {
	for _, s := range c.world.Names() {
		c.mark(s)
	}
}

func (c *view) wake() {
	select {
	case c.nudge <- struct{}{}:
	default:
	}
}

// markDue marks the services with a wake time in the past. It returns the time until the next one.
func (c *view) markDue() (next time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.Clock.Now()
	var due []pando.ServiceKey
	next = time.Minute
	for s, at := range c.wakes {
		if wait := at.Sub(now); wait > 0 {
			next = min(next, max(time.Millisecond, wait))
			continue
		}
		delete(c.wakes, s)
		due = append(due, s)
	}
	slices.SortFunc(due, pando.ServiceKey.Compare)
	for _, s := range due {
		c.mark(s)
	}
	return next
}

// isDirty reports whether a service needs a decision.
func (c *view) isDirty() bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return len(c.queue) > 0
}

// reserve takes the room of a decision that is about to be written. The caller holds the lock.
func (c *view) reserve(s pando.ServiceKey, t pando.Txn) {
	c.reserved[s] = t
	c.world.Reserve(t)
}

// free gives back the room of the last decision about a service, if it is not in the world. The
// caller holds the lock.
func (c *view) free(s pando.ServiceKey) {
	c.world.Release(c.reserved[s])
	delete(c.reserved, s)
}

func (c *view) nextDirty() (pando.ServiceKey, bool) {
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

// commit writes as the leader and applies the result at once, so that the next decision uses it.
func (c *view) commit(ctx context.Context, fence pando.Fence, t pando.Txn) error {
	t.Fence = fence
	c.mu.Lock()
	err := c.world.Spares(t)
	c.mu.Unlock()
	if err != nil {
		return err
	}
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
func (c *view) took(t pando.Txn, at pando.StoreRevision) {
	c.world.At(c.Clock.Now())
	c.world.Committed(t, at)
	world.Publish(c.world, t, c.Clock.Now())
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
func (c *view) later(s pando.ServiceKey) {
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

// hosts returns the hosts with a lease.
func (c *view) hosts() []pando.Host {
	c.mu.RLock()
	defer c.mu.RUnlock()
	out := []pando.Host{}
	for _, name := range slices.Sorted(maps.Keys(c.world.Hosts)) {
		out = append(out, c.world.Hosts[name].V)
	}
	return out
}

// Present returns a host with a lease.
func (c *view) Present(h pando.HostName) (pando.Host, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if v, ok := c.world.Hosts[h]; ok {
		return v.V, nil
	}
	return pando.Host{}, fmt.Errorf("%w: host %s has no lease; `pando hosts` shows it",
		pando.ErrUnreachable, h)
}

// hostOf returns the host of an instance of a service. A caller that may see the service may not see
// those of others, so an instance of another one is not found.
func (c *view) hostOf(s pando.ServiceKey, i pando.InstanceID) (pando.Host, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	v, ok := c.world.Instances[i]
	if !ok || v.V.Service != s {
		return pando.Host{}, fmt.Errorf("instance %s: %w", i, pando.ErrNotFound)
	}
	if h, ok := c.world.Hosts[v.V.Host]; ok {
		return h.V, nil
	}
	return pando.Host{}, fmt.Errorf("%w: host %s of instance %s has no lease",
		pando.ErrUnreachable, v.V.Host, i)
}

// stateHost returns the host that has the objects of a service's main head.
func (c *view) stateHost(s pando.ServiceKey) (pando.Host, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	head, ok := c.world.Heads[s]
	if !ok {
		return pando.Host{}, fmt.Errorf("state of %s: %w: nothing has been pushed yet",
			s, pando.ErrNotFound)
	}
	h, ok := c.world.Hosts[head.V.Host]
	if !ok {
		return pando.Host{}, fmt.Errorf("%w: host %s, which has the state of %s, has no lease",
			pando.ErrUnreachable, head.V.Host, s)
	}
	return h.V, nil
}

// comeAndGo records since when a member's host is away. The caller holds the lock.
func (c *view) comeAndGo(r pando.Record) {
	h, host := r.Key.Host()
	if _, member := c.world.Members[h]; !host || !member {
		return
	}
	if r.Value == nil {
		c.left[h] = c.Clock.Now()
	} else {
		delete(c.left, h)
	}
}

// newestSpec returns the spec that an operator last deployed for a service.
func (c *view) newestSpec(s pando.ServiceKey) (pando.Spec, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.world.SpecOf(s, c.world.Services[s].V.Target)
}
