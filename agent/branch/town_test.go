package branch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/sim"
	"pando.run/pando/lifecycle"
	"pando.run/pando/state"
	"pando.run/pando/world"
)

var merging3 = map[string]pando.StateType{"hits": pando.StateCounter, "log": pando.StateLog}

// town is several hosts that keep the state of web, with their store and their network. Control is
// the rule of lifecycle alone.
type town struct {
	*testing.T
	ctx  context.Context
	want int

	mu     sync.Mutex
	rev    pando.StoreRevision
	main   world.Versioned[pando.StateHead]
	keeper world.Versioned[pando.Keeper]
	news   chan struct{}
	seats  map[pando.InstanceID]pando.HostName
	hosts  map[pando.HostName]*townHost
	cut    map[[2]pando.HostName]bool
	merges int
	moves  int // of the keeper
}

// townHost is one host: its disk survives its agent.
type townHost struct {
	*town
	name  pando.HostName
	disk  *sim.Objects
	lease bool
	agent *Branches
	stop  func()
	// lag hides the newest keeper's record from this host.
	seen world.Versioned[pando.Keeper]
	lag  bool
}

func inTown(t *testing.T, hosts, want int, test func(c *town)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c := &town{T: t, ctx: ctx, want: want, news: make(chan struct{}),
			seats: map[pando.InstanceID]pando.HostName{}, hosts: map[pando.HostName]*townHost{},
			cut: map[[2]pando.HostName]bool{}}
		for n := range hosts {
			name := pando.HostName(fmt.Sprint("h", n+1))
			c.hosts[name] = &townHost{town: c, name: name, disk: sim.NewObjects()}
			c.hosts[name].start()
		}
		c.decide()
		test(c)
		for _, h := range c.hosts {
			h.kill()
		}
		cancel()
		synctest.Wait()
	})
}

// start begins the next life of the host's agent.
func (h *townHost) start() {
	ctx, cancel := context.WithCancel(h.ctx)
	b := New(Config{Host: h.name, Records: h, Objects: h.disk, Peers: wire{h: h},
		Clock: sim.Clock{}, Log: townLog(h.T, string(h.name)),
		TrimEvery: 700 * time.Millisecond, Keep: state.Keep{Commits: 2, Age: 3 * time.Second}})
	h.mu.Lock()
	h.agent, h.lease = b, true
	ended := make(chan struct{})
	h.stop = func() { cancel(); <-ended }
	h.mu.Unlock()
	go func() {
		defer close(ended)
		var loops sync.WaitGroup
		loops.Go(func() { b.TrimOften(ctx) })
		b.Tend(ctx)
		loops.Wait()
	}()
	h.change(func() {})
}

// kill ends the agent. Its lease ends with expire.
func (h *townHost) kill() {
	h.mu.Lock()
	stop := h.stop
	h.stop, h.agent = nil, nil
	h.mu.Unlock()
	if stop != nil {
		stop()
	}
}

// townLog prints the log of a host with PANDO_LOG=1.
func townLog(t *testing.T, host string) *slog.Logger {
	if os.Getenv("PANDO_LOG") == "" {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(t.Output(), nil)).With("on", host)
}

func (h *townHost) expire() {
	h.change(func() { h.lease = false })
	h.decide()
}

func (c *town) change(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	close(c.news)
	c.news = make(chan struct{})
}

// decide is control's turn.
func (c *town) decide() {
	c.change(func() {
		k := lifecycle.Keeping{Now: c.keeper.V, Want: c.want, Home: "h1"}
		k.Now.Service = web
		for name, h := range c.hosts {
			k.Hosts = append(k.Hosts,
				lifecycle.Holder{Name: name, Here: h.lease, Stays: true, Able: true})
		}
		next, why := lifecycle.Keep(k)
		if why == "" {
			return
		}
		if c.keeper.V.Host != next.Host {
			c.moves++
		}
		next.Epoch = c.keeper.V.Epoch + 1
		c.rev++
		c.keeper = world.Versioned[pando.Keeper]{V: next, Modified: c.rev}
		if c.main.Modified > 0 && c.main.V.Host != next.Host {
			c.main.V.Host, c.main.Modified = next.Host, c.rev
		}
	})
}

// The records, as this host sees them.

func (h *townHost) Main(pando.ServiceKey) world.Versioned[pando.StateHead] {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.main
}

func (h *townHost) Newest(
	_ context.Context, s pando.ServiceKey,
) (pando.StateHead, error) {
	return h.Main(s).V, nil
}

func (h *townHost) Keeper(pando.ServiceKey) world.Versioned[pando.Keeper] {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.lag {
		h.seen = h.keeper
	}
	return h.seen
}

func (h *townHost) Keepers() []world.Versioned[pando.Keeper] {
	if k := h.Keeper(web); k.Modified > 0 {
		return []world.Versioned[pando.Keeper]{k}
	}
	return nil
}

func (h *townHost) Types(pando.ServiceKey, int) map[string]pando.StateType { return merging3 }
func (h *townHost) Copies(pando.ServiceKey) int                            { return h.want }
func (h *townHost) Target(pando.ServiceKey) (int, bool)                    { return 1, true }

func (h *townHost) Alive(i pando.InstanceID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.seats[i] == h.name
}

func (h *townHost) Seat(_ pando.ServiceKey, i pando.InstanceID) (pando.HostName, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	on, ok := h.seats[i]
	return on, ok
}

func (h *townHost) Seated(_ pando.ServiceKey, on pando.HostName) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, at := range h.seats {
		if at == on {
			return true
		}
	}
	return false
}

func (h *townHost) Reach(to pando.HostName) (pando.Host, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return pando.Host{Name: to}, h.hosts[to].lease
}

func (h *townHost) Heads() (map[pando.ServiceKey]pando.ObjectID, int64, bool) {
	m := h.Main(web)
	return map[pando.ServiceKey]pando.ObjectID{web: m.V.Commit}, m.V.Merges, true
}

func (h *townHost) News() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.news
}

func (h *townHost) Commit(ctx context.Context, t pando.Txn) (pando.StoreRevision, error) {
	time.Sleep(time.Millisecond)
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	var err error
	var at pando.StoreRevision
	h.change(func() {
		defer func() { at = h.rev }()
		for _, c := range t.If {
			at := h.main.Modified
			if c.Key == pando.KeeperKey(web) {
				at = h.keeper.Modified
			}
			if c.Modified != at {
				err = pando.ErrConflict
			}
		}
		if !h.lease {
			err = pando.ErrFenced
		}
		if err != nil {
			return
		}
		h.rev++
		switch v := t.Put[0].(type) {
		case pando.StateHead:
			h.main = world.Versioned[pando.StateHead]{V: v, Modified: h.rev}
			h.merges++
		case pando.Keeper:
			h.keeper = world.Versioned[pando.Keeper]{V: v, Modified: h.rev}
		}
	})
	return at, err
}

// kept returns the record of the keeper.
func (c *town) kept() pando.Keeper {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.keeper.V
}

// running returns the agent of the host, or nil.
func (h *townHost) running() *Branches {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.agent
}

// wire is the network as a host sees it.
type wire struct {
	pando.Peers
	h *townHost
}

func (w wire) to(h pando.Host) (*Branches, error) {
	time.Sleep(time.Millisecond)
	w.h.mu.Lock()
	defer w.h.mu.Unlock()
	b := w.h.hosts[h.Name].agent
	if b == nil || w.h.cut[[2]pando.HostName{w.h.name, h.Name}] ||
		w.h.cut[[2]pando.HostName{h.Name, w.h.name}] {
		return nil, fmt.Errorf("%w: %s does not answer", pando.ErrUnavailable, h.Name)
	}
	return b, nil
}

func (w wire) ShipState(
	ctx context.Context, h pando.Host, write func(io.Writer) error,
) (got pando.Receipt, err error) {
	b, err := w.to(h)
	if err != nil {
		return got, err
	}
	var text strings.Builder
	if err := write(&text); err != nil {
		return got, err
	}
	if got, err = b.TakeState(ctx, w.h.name, strings.NewReader(text.String())); err != nil {
		return got, err
	}
	_, err = w.to(h) // the answer may be lost
	return got, err
}

func (w wire) FetchState(
	ctx context.Context, h pando.Host, q pando.StateWanted,
) (io.ReadCloser, error) {
	b, err := w.to(h)
	if err != nil {
		return nil, err
	}
	var text strings.Builder
	if err := b.GiveState(ctx, q, &text); err != nil {
		return nil, err
	}
	return io.NopCloser(strings.NewReader(text.String())), nil
}

// create seats an instance on a host.
func (c *town) create(h *townHost, i pando.InstanceID) {
	c.change(func() { c.seats[i] = h.name })
}

// hit commits one line and one hit of an instance. It returns an error if the commit was not
// acknowledged.
func (h *townHost) hit(i pando.InstanceID, line string) error {
	h.mu.Lock()
	b := h.agent
	h.mu.Unlock()
	if b == nil {
		return errors.New("no agent")
	}
	if _, err := b.Reopen(h.ctx, web, i, 1); err != nil {
		return err
	}
	_, err := b.Commit(h.ctx, web, i,
		pando.StateChange{Patch: map[string]string{"hits": "1", "log": line + "\n"}})
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil && h.agent != b {
		return errors.New("the agent died before the answer")
	}
	return err
}

func (h *townHost) push(i pando.InstanceID) error {
	h.mu.Lock()
	b := h.agent
	h.mu.Unlock()
	if b == nil {
		return errors.New("no agent")
	}
	_, err := b.Push(h.ctx, web, i)
	return err
}

// await waits for a condition.
func (c *town) await(what string, ok func() bool) {
	c.Helper()
	for range 1200 {
		if ok() {
			return
		}
		time.Sleep(100 * time.Millisecond)
		c.decide()
	}
	c.Fatalf("after 2 minutes: not %s; the keeper is %+v", what, c.kept())
}

func (c *town) whole() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.keeper.V
	return len(k.Copies) == c.want && len(k.Joining) == 0
}

// read returns a value of main on a host.
func (h *townHost) read(path string) string {
	v, err := state.Open(h.disk, web, merging3).Read(h.Main(web).V.Commit, path)
	if err != nil {
		return err.Error()
	}
	return string(v.Bytes)
}
