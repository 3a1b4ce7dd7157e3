package sim

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"pando.run/pando"
)

var (
	_ pando.Sandboxes = (*Sandboxes)(nil)
	_ pando.Sandbox   = (*Sandbox)(nil)
	_ pando.Steering  = (*Steering)(nil)
)

// Application is the program of an instance. It runs until ctx ends, and returns its exit code. The
// test gives it the agent's pando.Self.
type Application func(ctx context.Context, s *Sandbox) (code int)

// Sandboxes starts instances with a function as their program. It survives its agent: pass the same
// one to the next agent.
type Sandboxes struct {
	mu        sync.Mutex
	seed      uint64
	run       Application
	startMax  time.Duration
	lifeMax   time.Duration
	born      uint32
	sandboxes map[pando.InstanceID]*Sandbox
	prepared  map[pando.InstanceID]pando.SandboxSpec
	steering  *Steering
	// Check decides about new configs, as their checks do. Nil: every content is good.
	Check func(pando.ConfigChange) error
	// FlowsTake is how long a count of an instance's flows takes. A host has one processor for them.
	FlowsTake atomic.Int64
	processor chan struct{}
}

// NewSandboxes returns a host's sandboxes. A start takes up to startMax, an instance crashes within
// lifeMax (0: never), both drawn from the seed. steering counts the flows of an instance.
func NewSandboxes(
	seed uint64, run Application, startMax, lifeMax time.Duration, steering *Steering,
) *Sandboxes {
	return &Sandboxes{
		seed: seed, run: run, startMax: startMax, lifeMax: lifeMax,
		sandboxes: map[pando.InstanceID]*Sandbox{}, prepared: map[pando.InstanceID]pando.SandboxSpec{},
		steering: steering, processor: make(chan struct{}, 1),
	}
}

// draw returns a time below most, or 0 if most is 0.
func draw(dice *rand.Rand, most time.Duration) time.Duration {
	if most <= 0 {
		return 0
	}
	return time.Duration(dice.Int64N(int64(most)))
}

// Prepare makes the start take no time.
func (h *Sandboxes) Prepare(_ context.Context, s pando.SandboxSpec) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.prepared[s.Instance.ID]; ok {
		return fmt.Errorf("prepare %s: %w", s.Instance.ID, pando.ErrExists)
	}
	h.prepared[s.Instance.ID] = s
	return nil
}

// Discard drops a preparation.
func (h *Sandboxes) Discard(i pando.InstanceID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.prepared, i)
}

// Prepared returns the prepared instances, for tests.
func (h *Sandboxes) Prepared() []pando.InstanceID {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Sorted(maps.Keys(h.prepared))
}

// Start starts the program after its start time.
func (h *Sandboxes) Start(ctx context.Context, s pando.SandboxSpec) (pando.Sandbox, error) {
	dice := diceOf(h.seed, "start "+string(s.Instance.ID), 0)
	wait, life := draw(dice, h.startMax), draw(dice, h.lifeMax)
	h.mu.Lock()
	if _, ok := h.prepared[s.Instance.ID]; ok {
		wait = 0
		delete(h.prepared, s.Instance.ID)
	}
	h.mu.Unlock()
	if err := pando.Sleep(ctx, Clock{}, wait); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.sandboxes[s.Instance.ID]; ok {
		return nil, fmt.Errorf("start %s: %w", s.Instance.ID, pando.ErrExists)
	}
	alive, kill := context.WithCancelCause(context.Background())
	h.born++
	s.Instance.IP4 = netip.AddrFrom4([4]byte{10, 128, byte(h.born >> 8), byte(h.born)})
	b := &Sandbox{Spec: s, host: h, kill: kill, events: make(chan pando.SandboxEvent, eventsMax),
		gone: make(chan struct{}), listener: newListener()}
	h.sandboxes[s.Instance.ID] = b
	go b.live(alive, h.run, life)
	return b, nil
}

// Attach returns every sandbox that was not removed, ordered by name. Each sends its events from
// the first one.
func (h *Sandboxes) Attach(context.Context) ([]pando.Sandbox, error) {
	h.mu.Lock()
	clear(h.prepared)
	h.mu.Unlock()
	var out []pando.Sandbox
	for _, b := range h.All() {
		h.mu.Lock()
		past := b.told
		b.told, b.events = nil, make(chan pando.SandboxEvent, eventsMax)
		for _, e := range past {
			b.tell(e)
		}
		h.mu.Unlock()
		out = append(out, b)
	}
	return out, nil
}

// All returns the sandboxes of Attach, without its effects, for tests.
func (h *Sandboxes) All() []*Sandbox {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []*Sandbox
	for _, id := range slices.Sorted(maps.Keys(h.sandboxes)) {
		out = append(out, h.sandboxes[id])
	}
	return out
}

// eventsMax is the number of events of one sandbox: ready and exited, and the silence of its shim.
const eventsMax = 4

// Silence makes the shim silent for the reason why, or lets it answer again (""). For tests.
func (b *Sandbox) Silence(why string) {
	e := pando.SandboxEvent{Kind: pando.SandboxAnswers}
	if why != "" {
		e = pando.SandboxEvent{Kind: pando.SandboxSilent, Why: why}
	}
	b.host.mu.Lock()
	defer b.host.mu.Unlock()
	b.events <- e
}

// tell sends an event and stores it for the next agent. The caller holds the host's lock.
func (b *Sandbox) tell(e pando.SandboxEvent) {
	if len(b.told) > 0 && b.told[len(b.told)-1].Kind == e.Kind {
		return
	}
	b.told = append(b.told, e)
	b.events <- e
	if e.Kind == pando.SandboxExited {
		close(b.events)
	}
}

// Alive reports whether the program runs.
func (b *Sandbox) Alive() bool {
	select {
	case <-b.gone:
		return false
	default:
		return true
	}
}

// Notify records that the program is ready.
func (b *Sandbox) Notify(context.Context) error {
	b.host.mu.Lock()
	defer b.host.mu.Unlock()
	if b.Alive() {
		b.tell(pando.SandboxEvent{Kind: pando.SandboxNotified})
	}
	return nil
}

// Reboot ends every program and drops every sandbox, table and flow, as the end of a kernel does.
func (h *Sandboxes) Reboot() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, b := range h.sandboxes {
		b.kill(signalled("SIGKILL"))
		delete(h.sandboxes, id)
	}
	h.steering.reboot()
}

// Sandbox is one instance.
type Sandbox struct {
	stays
	Spec     pando.SandboxSpec
	host     *Sandboxes
	kill     context.CancelCauseFunc
	events   chan pando.SandboxEvent
	gone     chan struct{}        // closes when the program has ended
	told     []pando.SandboxEvent // so far; guarded by the host's lock
	paused   atomic.Pointer[chan struct{}]
	listener *listener
	configs  map[string]string // guarded by the host's lock
	// CPU is the processor time that its program has used, in nanoseconds.
	CPU atomic.Int64
	// Probes counts the calls of ProbeClients.
	Probes atomic.Int64
}

// signalled is the reason for a program's end from outside.
type signalled string

func (s signalled) Error() string { return string(s) }

func (b *Sandbox) live(alive context.Context, run Application, life time.Duration) {
	if life > 0 {
		crash := time.AfterFunc(life, func() { b.kill(signalled("SIGSEGV")) })
		defer crash.Stop()
	}
	exit := pando.Exit{Code: run(alive, b)}
	if s, ok := context.Cause(alive).(signalled); ok {
		exit.Code, exit.Signal = -1, string(s)
	}
	b.kill(nil)
	close(b.gone)
	b.host.mu.Lock()
	defer b.host.mu.Unlock()
	b.tell(pando.SandboxEvent{Kind: pando.SandboxExited, Exit: exit})
}

// Events returns the program's events for the agent that attached last.
func (b *Sandbox) Events() <-chan pando.SandboxEvent {
	b.host.mu.Lock()
	defer b.host.mu.Unlock()
	return b.events
}

// Crash ends the program as its own fault would.
func (b *Sandbox) Crash() { b.kill(signalled("SIGSEGV")) }

// Finish ends the program as if it had done its work. Its application must return 0 then.
func (b *Sandbox) Finish() { b.kill(nil) }

// Instance returns the name of the instance.
func (b *Sandbox) Instance() pando.InstanceID { return b.Spec.Instance.ID }

// Service returns the service of the instance.
func (b *Sandbox) Service() pando.ServiceKey { return b.Spec.Instance.Service }

// Listener returns a listener without connections: a simulated program calls the agent itself.
func (b *Sandbox) Listener() net.Listener { return b.listener }

// LastLines returns nil: a simulated program has no log.
func (b *Sandbox) LastLines(int) []string { return nil }

// Link returns the addresses of the instance.
func (b *Sandbox) Link() pando.Link {
	return pando.Link{
		IP4: b.Spec.Instance.IP4, IP6: b.Spec.Instance.IP6, Host: "sim-" + string(b.Instance()),
	}
}

// Pause makes Awake wait until Resume.
func (b *Sandbox) Pause(context.Context) error {
	c := make(chan struct{})
	b.paused.CompareAndSwap(nil, &c)
	return nil
}

// Resume ends a pause.
func (b *Sandbox) Resume(context.Context) error {
	if c := b.paused.Swap(nil); c != nil {
		close(*c)
	}
	return nil
}

// Paused reports whether the program must pause, for tests.
func (b *Sandbox) Paused() bool { return b.paused.Load() != nil }

// Awake returns at once unless the program is paused. Then it returns when the pause or the program
// ends. A program that supports pauses calls it at every step.
func (b *Sandbox) Awake(ctx context.Context) error {
	if c := b.paused.Load(); c != nil {
		select {
		case <-*c:
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

// Stop ends the program and waits for it.
func (b *Sandbox) Stop(ctx context.Context) error {
	b.kill(signalled("SIGTERM"))
	select {
	case <-b.gone:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Remove deletes the sandbox.
func (b *Sandbox) Remove(ctx context.Context) error {
	if err := b.host.steering.called("Remove"); err != nil {
		return err
	}
	if err := b.Stop(ctx); err != nil {
		return err
	}
	b.host.mu.Lock()
	defer b.host.mu.Unlock()
	delete(b.host.sandboxes, b.Instance())
	return b.listener.Close()
}

// Exec succeeds while the program lives.
func (b *Sandbox) Exec(context.Context, []string) (int, []byte, error) {
	if b.Alive() {
		return 0, nil, nil
	}
	return 1, nil, nil
}

// Freeze refuses: a simulated program has no memory.
func (b *Sandbox) Freeze(context.Context, string) (pando.Machine, error) {
	return pando.Machine{}, fmt.Errorf("%w: a simulated program has no memory", pando.ErrUnsupported)
}

// Renew reports no change, because a simulated program has no files.
func (b *Sandbox) Renew(
	context.Context, map[string][]byte, map[string]string,
) ([]string, error) {
	return nil, nil
}

// Session returns a connection that sends back its input.
func (b *Sandbox) Session(context.Context, pando.SessionSpec) (io.ReadWriteCloser, error) {
	r, w := io.Pipe()
	return struct {
		io.Reader
		io.WriteCloser
	}{r, w}, nil
}

// Flows returns the instance's open flows in the steering.
func (b *Sandbox) Flows(ctx context.Context) (int, error) {
	if d := time.Duration(b.host.FlowsTake.Load()); d > 0 {
		b.host.processor <- struct{}{}
		defer func() { <-b.host.processor }()
		if err := pando.Sleep(ctx, Clock{}, d); err != nil {
			return 0, err
		}
	}
	if err := b.host.steering.called("Flows"); err != nil {
		return 0, err
	}
	return b.host.steering.FlowsOf(b.Instance()), nil
}

// Clients returns a client for each of the instance's open flows. Each is silent for a minute.
func (b *Sandbox) Clients(ctx context.Context) (out []pando.Client, err error) {
	n, err := b.Flows(ctx)
	for k := range n {
		out = append(out, pando.Client{Protocol: pando.TCP, Idle: time.Minute,
			Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, 1}), uint16(1000+k))})
	}
	return out, err
}

// ProbeClients counts its calls: every simulated client lives.
func (b *Sandbox) ProbeClients(context.Context) error {
	b.Probes.Add(1)
	return nil
}

// Usage returns one process with the processor time of CPU.
func (b *Sandbox) Usage(context.Context) (pando.Usage, error) {
	return pando.Usage{PIDs: 1, CPU: time.Duration(b.CPU.Load())}, nil
}

// Strain returns no use: a test of meters has sandboxes of its own.
func (b *Sandbox) Strain(context.Context) (pando.Strain, error) { return pando.Strain{}, nil }

// Hears returns both families.
func (b *Sandbox) Hears([]pando.Port) (pando.Hearing, error) { return "46", nil }

// listener never has a connection: a simulated program calls the agent itself.
type listener struct {
	closed chan struct{}
	once   sync.Once
}

func newListener() *listener { return &listener{closed: make(chan struct{})} }

func (l *listener) Accept() (net.Conn, error) {
	<-l.closed
	return nil, net.ErrClosed
}

func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *listener) Addr() net.Addr { return &net.UnixAddr{Net: "unix", Name: "sim"} }
