package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent"
	"pando.run/pando/control"
	"pando.run/pando/driver/sim"
	"pando.run/pando/state"
)

// cluster holds all parts of one run.
type cluster struct {
	t        *testing.T
	seed     uint64
	ctx      context.Context
	registry *sim.Registry
	peers    *sim.Peers
	hosts    []*host
	controls []*process
	leaders  []*control.Control // of each process's life; guarded by mu
	front    *control.Control   // answers operators; it never leads
	ledger   *ledger
	promises *promises
	wg       sync.WaitGroup
	log      *slog.Logger

	faulty bool // the drivers fail at random until the run is quiet
	lean   bool // no process, instance or store is hurt from outside

	mu    sync.Mutex
	quiet bool // applications make no further requests
	// faults counts the failed calls of drivers by method.
	faults map[string]int
	keep   state.Keep
	// trimEvery is the time between two trims of the states of a host.
	trimEvery time.Duration
	history   *history                              // of the contested service; nil: there is none
	accounts  *accounts                             // of the run's service; nil: there are none
	intents   map[pando.IntentID][]pando.InstanceID // the instances started for each intent
	cut       []string                              // flows that a table took from a living instance
}

// dice returns the random numbers of one actor. They depend on the seed and not on other actors.
func (c *cluster) dice(actor string, n uint64) *rand.Rand {
	h := c.seed * 0x9e3779b97f4a7c15
	for _, b := range []byte(actor) {
		h = (h ^ uint64(b)) * 1099511628211
	}
	return rand.New(rand.NewPCG(h, n))
}

func (c *cluster) go_(f func()) {
	c.wg.Add(1)
	go func() {
		defer c.wg.Done()
		f()
	}()
}

// process is one daemon through all of its lives.
type process struct {
	name string
	c    *cluster
	boot func(ctx context.Context, m *mortal, life int) func(context.Context) error

	mu    sync.Mutex
	life  int
	now   *mortal
	ended chan struct{}
	ctx   context.Context
}

// start begins the next life.
func (p *process) start() {
	ctx, cancel := context.WithCancel(p.c.ctx)
	m := &mortal{kill: cancel}
	p.mu.Lock()
	p.life++
	p.now, p.ended, p.ctx = m, make(chan struct{}), ctx
	ended, life := p.ended, p.life
	p.mu.Unlock()
	run := p.boot(ctx, m, life)
	p.c.go_(func() {
		defer close(ended)
		defer cancel()
		if err := run(ctx); err != nil && ctx.Err() == nil {
			p.c.t.Errorf("%s ended by itself: %v", p.name, err)
		}
	})
}

// killSoon ends this life at its nth next step, or after a while if it takes no step, and waits for
// the end.
func (p *process) killSoon(n int, after bool) {
	p.mu.Lock()
	m, ended := p.now, p.ended
	p.mu.Unlock()
	m.doom(n, after)
	select {
	case <-ended:
	case <-time.After(time.Second):
		m.die()
		<-ended
	}
}

// host is one machine: its agent, and the parts that survive the agent.
type host struct {
	process
	record    pando.Host
	objects   *sim.Objects
	steering  *sim.Steering
	sandboxes *sim.Sandboxes
	books     books
	starts    map[pando.InstanceID]int // since the machine booted; guarded by the cluster's lock
	ids       *sim.IDs
	agent     *agent.Agent // of this life; guarded by process.mu
}

func newCluster(
	ctx context.Context, t *testing.T, seed uint64, hosts int, delayMax time.Duration,
	set func(*cluster),
) *cluster {
	c := &cluster{
		t: t, seed: seed, ctx: ctx, registry: sim.NewRegistry(seed, delayMax), peers: sim.NewPeers(),
		ledger: newLedger(), promises: newPromises(), log: slog.New(slog.DiscardHandler),
		intents: map[pando.IntentID][]pando.InstanceID{}, trimEvery: 700 * time.Millisecond,
		faults: map[string]int{}, keep: state.Keep{Commits: 2, Age: 3 * time.Second},
	}
	if hosts > 1 { // a copy that was away needs the history of that time
		c.keep.Age = 2 * pando.HostLease
	}
	set(c)
	if os.Getenv("PANDO_LOG") != "" {
		c.log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	for n := range hosts {
		h := &host{
			starts: map[pando.InstanceID]int{}, objects: sim.NewObjects(), steering: sim.NewSteering(),
		}
		name := pando.HostName(fmt.Sprintf("h%d", n+1))
		h.record = pando.Host{Name: name, Slot: n, CPUs: 2, Tunnel: true}
		h.sandboxes = sim.NewSandboxes(seed+uint64(n), h.program, 20*time.Millisecond, 0, h.steering)
		h.process = process{name: "agent " + string(h.record.Name), c: c, boot: h.boot}
		c.hosts = append(c.hosts, h)
	}
	for n, h := range c.hosts {
		h.ids = &sim.IDs{Process: 3 + n}
	}
	c.leaders = make([]*control.Control, 2)
	for n := range c.leaders {
		name, ids := fmt.Sprintf("control-%d", n+1), &sim.IDs{Process: 1 + n}
		c.controls = append(c.controls, &process{name: name,
			c: c, boot: func(_ context.Context, m *mortal, life int) func(context.Context) error {
				store := faultyRegistry{c.registry.As(name), c.faultsOf(fmt.Sprint(name, " life ", life))}
				v := c.control(name, mortalRegistry{store, m}, ids)
				c.mu.Lock()
				c.leaders[n] = v
				c.mu.Unlock()
				return v.Run
			}})
	}
	c.front = c.control("front",
		follower{faultyRegistry{c.registry.As("front"), c.faultsOf("front")}}, &sim.IDs{})
	c.go_(func() { _ = c.front.Run(ctx) })
	return c
}

// startAll begins the first lives of the controls and of the agents.
func (c *cluster) startAll() {
	for _, p := range c.controls {
		p.start()
	}
	for _, h := range c.hosts {
		h.start()
	}
}

// endAll ends every process and program, and waits: nothing may outlive the bubble, also after a
// failure.
func (c *cluster) endAll(cancel context.CancelFunc) {
	cancel()
	for _, h := range c.hosts {
		h.sandboxes.Reboot()
	}
	c.wg.Wait()
}

func (c *cluster) control(name string, r pando.Registry, ids *sim.IDs) *control.Control {
	return control.New(control.Config{
		Registry: r, Peers: c.peers, Clock: sim.Clock{}, IDs: ids, Log: c.log.With("process", name),
		Name: name,
	})
}

// follower is the registry of a control that is never elected.
type follower struct{ pando.Registry }

func (follower) Lead(ctx context.Context, _, _ string) (pando.Fence, <-chan struct{}, error) {
	<-ctx.Done()
	return pando.Fence{}, nil, ctx.Err()
}

func (h *host) boot(_ context.Context, m *mortal, life int) func(context.Context) error {
	record := h.record
	record.Joined = time.Now()
	faults := h.c.faultsOf(fmt.Sprint(h.name, " life ", life))
	a := agent.New(agent.Config{
		Host: record, Clock: sim.Clock{}, IDs: h.ids,
		Log:   h.c.log.With("process", h.name, "life", life),
		Peers: faultyPeers{h.c.peers.As(h.record.Name), faults},
		Server: agent.Server{
			Registry: mortalRegistry{faultyRegistry{h.c.registry.As(h.name), faults}, m},
			Control:  &askers{h.c, m, uint64(life)}},
		Programs: agent.Programs{
			Sandboxes: mortalSandboxes{faultySandboxes{h.sandboxes, faults}, m, h.started},
			Prober:    prober{}, Books: mortalBooks{&h.books, m},
			Serve: func(pando.Self, pando.InstanceID) http.Handler { return http.NotFoundHandler() }},
		Packets: agent.Packets{
			Steering: mortalSteering{faultySteering{h.steering, faults}, m, h.watchTable}},
		States: agent.States{Objects: mortalObjects{faultyObjects{h.objects, faults}, m},
			TrimEvery: h.c.trimEvery, Keep: h.c.keep},
	})
	h.mu.Lock()
	h.agent = a
	h.mu.Unlock()
	h.c.peers.Set(h.record.Name, a.HostAgent())
	return func(ctx context.Context) error {
		defer func() {
			h.mu.Lock()
			h.agent = nil
			h.mu.Unlock()
			h.c.peers.Set(h.record.Name, nil)
		}()
		return a.Run(ctx)
	}
}

// prober reports every living program as healthy.
type prober struct{}

func (prober) Probe(ctx context.Context, _ pando.Probe, s pando.Sandbox, _ pando.Port) error {
	if code, _, err := s.Exec(ctx, nil); err != nil || code != 0 {
		return errors.Join(err, fmt.Errorf("it exited with %d", code))
	}
	return nil
}

// started counts the starts per instance and per intent, on machines that have not been rebooted
// since.
func (h *host) started(i pando.Instance) {
	h.c.mu.Lock()
	defer h.c.mu.Unlock()
	h.starts[i.ID]++
	if n := h.starts[i.ID]; n > 1 {
		h.c.t.Errorf("instance %s was started %d times", i.ID, n)
	}
	h.c.intents[i.Intent] = append(h.c.intents[i.Intent], i.ID)
}

// reboot ends all programs on the machine.
func (h *host) reboot() {
	h.sandboxes.Reboot()
	h.c.mu.Lock()
	defer h.c.mu.Unlock()
	clear(h.starts)
}

// watchTable records flows that a new table would take from an instance that lives and still has
// its sandbox.
func (h *host) watchTable(t pando.SteeringTable) {
	kept := map[pando.InstanceID]bool{}
	for _, e := range t.Endpoints {
		kept[e.Instance] = true
		if e.Weight > 0 && h.c.promises.isHalted(e.Instance) {
			h.c.t.Errorf("%s steers new flows to %s again, after its halt was acknowledged",
				h.name, e.Instance)
		}
	}
	for _, b := range h.sandboxes.All() {
		id := b.Instance()
		if n := h.steering.FlowsOf(id); b.Service() == t.Service && n > 0 && !kept[id] && b.Alive() {
			h.c.mu.Lock()
			h.c.cut = append(h.c.cut, fmt.Sprintf("%s: %d flows of %s", time.Now().Format("05.000"), n, id))
			h.c.mu.Unlock()
		}
	}
}

// self returns this life of the agent, and a context for its end. It returns an error if no agent
// runs.
func (h *host) self() (pando.Self, context.Context, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.agent == nil || h.ctx.Err() != nil {
		return nil, nil, fmt.Errorf("%w: connection refused", pando.ErrUnavailable)
	}
	return h.agent.Self(), h.ctx, nil
}

// ask calls the agent as an application does. The call ends with the application or with the agent.
func (h *host) ask(ctx context.Context, f func(context.Context, pando.Self) error) error {
	a, life, err := h.self()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	defer context.AfterFunc(life, cancel)()
	if err := f(ctx, a); err != nil {
		return err
	}
	return life.Err()
}

func (c *cluster) isQuiet() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.quiet
}
