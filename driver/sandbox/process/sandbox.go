package process

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/network/netspace"
	"pando.run/pando/driver/network/sockets"
	"pando.run/pando/driver/sandbox/process/logfile"
	"pando.run/pando/driver/sandbox/process/wire"
)

var _ pando.Sandbox = (*sandbox)(nil)

// sandbox is an agent's view of a slot with a program.
type sandbox struct {
	d        *Driver
	slot     *slot
	listener *ownListener
	watch    *net.UnixConn
	events   chan pando.SandboxEvent
	ended    chan struct{} // closed once the program has exited
	left     chan struct{} // closed once the agent lets go of it
	empty    bool          // no program ever started in it
	thaws    *wire.Frozen  // of a sandbox that waits for a frozen program
	taps     sync.Mutex
	tap      *tap // of a program that moves, guarded by taps; nil: none
	once     sync.Once
	silence  silence
}

func (d *Driver) newSandbox(s *slot) *sandbox {
	return &sandbox{d: d, slot: s, events: make(chan pando.SandboxEvent, 16),
		ended: make(chan struct{}), left: make(chan struct{})}
}

// open connects to the shim of a slot, and starts or loads a program if the request has one. It
// uses one message and one answer, because each costs a turn of the scheduler on both sides.
func (d *Driver) open(ctx context.Context, s *slot, q wire.Request) (*sandbox, error) {
	b, err := thawer{d}.hold(ctx, s, q)
	if err == nil && !q.Load {
		go b.listen()
	}
	return b, err
}

// holdWaitMax is how long a shim may take to start a program: it mounts its files, and runs the
// checks of its configs.
const holdWaitMax = 30*time.Second + pando.ConfigCheckMax

// hold is open without a listener to the events.
func (d thawer) hold(ctx context.Context, s *slot, q wire.Request) (*sandbox, error) {
	b := d.driver.newSandbox(s)
	var err error
	if b.watch, s.ready = s.ready, nil; b.watch == nil {
		if b.watch, err = dialShim(s); err != nil {
			return nil, err
		}
	}
	q.Verb = "hold"
	ctx, cancel := context.WithTimeout(ctx, holdWaitMax)
	defer cancel()
	r, f, err := converse(ctx, b.watch, q)
	if err != nil {
		b.close()
		return nil, fmt.Errorf("the sandbox of %s: %w", s.Instance, s.unanswered(ctx, err))
	}
	if b.listener, err = newOwnListener(f, s.cgroup); err == nil && r.Error != "" {
		err = r.Err()
	}
	if err != nil {
		b.close()
		return nil, err
	}
	b.empty, b.thaws = r.Code == wire.EmptyCode, r.Frozen
	d.driver.watchShim(b)
	return b, nil
}

// converse sends a request and returns its reply. The end of ctx ends both, also against a shim that
// reads nothing.
func converse(ctx context.Context, c *net.UnixConn, q wire.Request) (r wire.Reply, f *os.File, err error) {
	hurry := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	if err = sendHold(c, q); err == nil {
		f, err = wire.Receive(c, &r)
	}
	if !hurry() {
		if f != nil {
			f.Close()
		}
		return r, nil, errors.Join(ctx.Err(), err)
	}
	return r, f, err
}

// unanswered names the cause of an error in a talk with the shim: it is gone, or it does not answer,
// or the talk failed on this side.
func (s *slot) unanswered(ctx context.Context, err error) error {
	switch {
	case !s.alive():
		return fmt.Errorf("%w: its shim is gone: %w", pando.ErrNotFound, err)
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("%w: its shim (process %d) does not answer in time: %w", pando.ErrNotReady,
			s.PID, ctx.Err())
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return fmt.Errorf("talk to its shim (process %d): %w", s.PID, err)
}

// lost returns the sandbox of a slot with an ended shim. It reports only that end.
func (d *Driver) lost(s *slot) *sandbox {
	b := d.newSandbox(s)
	b.listener = &ownListener{Listener: noListener{}}
	b.events <- pando.SandboxEvent{Kind: pando.SandboxExited,
		Exit: pando.Exit{Code: -1, Signal: shimEnded, LastLines: b.LastLines(20)}}
	b.over()
	close(b.ended)
	return b
}

// shimEnded is the signal of a program after its shim was killed: the kernel kills everything in
// its pid namespace.
const shimEnded = "SIGKILL (its shim ended)"

// noListener is the listener of a sandbox without any process.
type noListener struct{}

func (noListener) Accept() (net.Conn, error) { return nil, net.ErrClosed }
func (noListener) Close() error              { return nil }
func (noListener) Addr() net.Addr            { return &net.UnixAddr{Net: "unix"} }

func dialShim(s *slot) (*net.UnixConn, error) {
	if err := s.answerable(); err != nil {
		return nil, fmt.Errorf("the shim of %s: %w", s.Instance, err)
	}
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: s.control(), Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("reach the shim of %s: %w", s.Instance, err)
	}
	return c, nil
}

func (b *sandbox) close() {
	b.once.Do(func() {
		close(b.left)
		b.d.forgetShim(b)
		b.silence.mu.Lock()
		defer b.silence.mu.Unlock()
		if b.watch != nil {
			b.watch.Close()
		}
		if b.listener != nil {
			b.listener.Close()
		}
	})
}

// listen passes on the events of the shim. The end of the shim is the end of its program. An end of
// the talk alone is not.
func (b *sandbox) listen() {
	said := map[pando.SandboxEventKind]bool{} // a new talk repeats the past
	for {
		var r wire.Reply
		_, err := wire.Receive(b.watch, &r)
		switch {
		case err != nil && b.resume(err):
		case err != nil:
			b.tellShimEnd()
			return
		case r.Event == nil || said[r.Event.Kind]:
		case r.Event.Kind == pando.SandboxExited:
			b.tellEnd(r.Event.Exit)
			return
		default:
			said[r.Event.Kind] = true
			b.events <- *r.Event
		}
	}
}

// tellShimEnd is tellEnd for a shim that is gone. At the end of the agent it may just be silent.
func (b *sandbox) tellShimEnd() {
	if !closed(b.d.done) || !b.slot.alive() {
		b.tellEnd(pando.Exit{Code: -1, Signal: shimEnded})
	}
}

// tellEnd tells the agent that the program has ended, with the last lines of its log, and ends the
// events.
func (b *sandbox) tellEnd(e pando.Exit) {
	e.OOMKilled = e.Signal == "SIGKILL" && b.slot.cgroup.OOMKilled()
	e.LastLines = b.LastLines(20)
	if e.Code != 0 {
		view := fmt.Sprintf("/proc/%d/root", b.slot.PID)
		e.LastLines = append(e.LastLines, missing(e.LastLines, view)...)
	}
	b.events <- pando.SandboxEvent{Kind: pando.SandboxExited, Exit: e}
	close(b.ended)
	b.over()
}

// ask sends one request on its own connection, so requests do not wait for each other. It hangs up
// when ctx ends.
func (b *sandbox) ask(ctx context.Context, q wire.Request) (wire.Reply, error) {
	var r wire.Reply
	c, err := dialShim(b.slot)
	if err != nil {
		return r, fmt.Errorf("%s: %w", q.Verb, err)
	}
	defer c.Close()
	r, _, err = converse(ctx, c, q)
	if err != nil && q.Verb != "exec" && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		b.doubts() // a command may take longer than its caller waits
	}
	switch {
	case err != nil:
		return r, fmt.Errorf("%s in %s: %w", q.Verb, b.slot.Instance, b.slot.unanswered(ctx, err))
	case r.Error != "":
		return r, errors.New(r.Error)
	}
	return r, nil
}

func (b *sandbox) Instance() pando.InstanceID        { return b.slot.Instance }
func (b *sandbox) Service() pando.ServiceKey         { return b.slot.Service }
func (b *sandbox) Listener() net.Listener            { return b.listener }
func (b *sandbox) Events() <-chan pando.SandboxEvent { return b.events }

func (b *sandbox) Link() pando.Link { return b.slot.link() }

func (s *slot) link() pando.Link {
	mac, _ := net.ParseMAC(s.MAC)
	hostMAC, _ := net.ParseMAC(s.HostMAC)
	return pando.Link{IP4: s.IP4, IP6: s.IP6, IfIndex: s.IfIndex, Host: s.Link, MAC: mac,
		HostMAC: hostMAC, Netns: s.netns(),
		Service: s.Service, Reach: s.Spec.Reach,
		OfHost: s.Spec.HostNet()}
}

// Notify implements pando.Sandbox. The shim keeps the event for later agents.
func (b *sandbox) Notify(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, shimWaitMax)
	defer cancel()
	_, err := b.ask(ctx, wire.Request{Verb: "notify"})
	return err
}

// Pause implements pando.Sandbox.
func (b *sandbox) Pause(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, shimWaitMax)
	defer cancel()
	_, err := b.ask(ctx, wire.Request{Verb: "pause"})
	return err
}

// Resume implements pando.Sandbox. It wakes the processes itself instead of waiting for the shim to
// be scheduled. A stopped process cannot start another one.
func (b *sandbox) Resume(context.Context) error {
	if err := b.unseal(); err != nil {
		return fmt.Errorf("resume %s: %w", b.slot.Instance, err)
	}
	pids, err := b.slot.cgroup.Processes()
	if err != nil {
		return fmt.Errorf("resume %s: %w", b.slot.Instance, err)
	}
	for _, pid := range pids {
		if err := unix.Kill(pid, unix.SIGCONT); err != nil && err != unix.ESRCH {
			return fmt.Errorf("resume %s: %w", b.slot.Instance, err)
		}
	}
	return nil
}

// shimWaitMax is how long a shim may take to pass a signal on, or to notice the end of its program.
// A shim that hangs is killed, and the kernel ends everything in its pid namespace.
const shimWaitMax = 5 * time.Second

// Stop implements pando.Sandbox. It also ends the processes that the program left. It asks without
// ctx, because the end of ctx means SIGKILL now.
func (b *sandbox) Stop(ctx context.Context) error {
	if !b.slot.alive() {
		return nil // the kernel ended everything with its shim
	}
	b.slot.wake() // an order to end waits for no one to continue it
	return b.stop(ctx)
}

// stop is Stop for a shim that runs.
func (b *sandbox) stop(ctx context.Context) error {
	if !b.pressPowerButton(ctx) {
		sig := unix.Signal(pando.SignalNumber(b.slot.Spec.StopSignal))
		if sig == 0 {
			sig = unix.SIGTERM
		}
		if err := b.insist(ctx, wire.Request{Verb: "signal", Signal: int(sig)}); err != nil {
			return b.stopShim(fmt.Errorf("stop %s: %w", b.slot.Instance, err))
		}
	}
	timer, stop := b.d.Clock.After(pando.Seconds(b.slot.Spec.StopSeconds))
	defer stop()
	select {
	case <-b.ended:
	case <-timer:
	case <-ctx.Done():
	}
	if err := b.insist(ctx, wire.Request{Verb: "kill"}); err != nil && b.slot.alive() {
		return b.stopShim(fmt.Errorf("kill %s: %w", b.slot.Instance, err))
	}
	late, stopLate := b.d.Clock.After(shimWaitMax)
	defer stopLate()
	select {
	case <-b.ended:
		return nil
	case <-late:
		return b.stopShim(fmt.Errorf("kill %s: %w: its shim does not report its end", b.slot.Instance,
			pando.ErrNotReady))
	}
}

// insist sends the shim a request that must succeed even after the end of ctx.
func (b *sandbox) insist(ctx context.Context, q wire.Request) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shimWaitMax)
	defer cancel()
	_, err := b.ask(ctx, q)
	return err
}

// stopShim kills a shim that does not obey, for the reason why, and its program with it.
func (b *sandbox) stopShim(why error) error {
	b.d.Log.Warn("a shim is killed", "instance", b.slot.Instance, "error", why)
	if err := b.slot.end(); err != nil {
		return errors.Join(why, err)
	}
	return nil
}

// Remove implements pando.Sandbox. The first process of the sandbox ends only after all others.
func (b *sandbox) Remove(context.Context) error {
	b.close()
	if err := b.slot.end(); err != nil {
		return fmt.Errorf("remove %s: %w", b.slot.Instance, err)
	}
	if late := b.untap(); len(late) > 0 {
		b.d.Log.Warn("late packets for an instance that left are lost; their senders repeat them",
			"instance", b.slot.Instance, "packets", len(late))
	}
	b.d.removals.Add(1)
	go func() {
		defer b.d.removals.Done()
		b.d.scrap(b.slot)
		b.d.tellGone()
	}()
	return nil
}

// Exec implements pando.Sandbox.
func (b *sandbox) Exec(ctx context.Context, command []string) (int, []byte, error) {
	r, err := b.ask(ctx, wire.Request{Verb: "exec", Command: command})
	return r.Code, r.Output, err
}

// Usage implements pando.Sandbox.
func (b *sandbox) Usage(context.Context) (pando.Usage, error) { return b.slot.cgroup.Usage(), nil }

// Strain implements pando.Sandbox.
func (b *sandbox) Strain(context.Context) (pando.Strain, error) {
	return b.slot.cgroup.Strain(), nil
}

// Hears implements pando.Sandbox. Nothing is known of a program with the network of its host: the
// listeners there are those of any program.
func (b *sandbox) Hears(ports []pando.Port) (h pando.Hearing, err error) {
	if b.slot.Spec.HostNet() {
		return "", nil
	}
	err = netspace.At(b.slot.netns(), func() (err error) {
		h, err = sockets.Hearing(ports)
		return err
	})
	return h, err
}

// LastLines implements pando.Sandbox.
func (b *sandbox) LastLines(n int) []string {
	lines := logfile.LastLines(b.d.logDir(b.slot.Service, b.slot.Instance), n)
	for n, line := range lines {
		lines[n] = logfile.Evidence(line)
	}
	return lines
}

// ownListener is the listener of an instance's own API. It accepts connections from its own sandbox
// only.
type ownListener struct {
	net.Listener
	cgroup  pando.Cgroup
	foreign atomic.Int64
}

func newOwnListener(f *os.File, c pando.Cgroup) (*ownListener, error) {
	if f == nil {
		return nil, fmt.Errorf("%w: the shim sent no listener", pando.ErrInvalid)
	}
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	return &ownListener{Listener: l, cgroup: c}, nil
}

// Accept implements net.Listener.
func (l *ownListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.own(c.(*net.UnixConn)) {
			return c, nil
		}
		l.foreign.Add(1)
		c.Close()
	}
}

// own reports whether the process at the other end is in the sandbox's cgroup. No process of a
// sandbox can leave its cgroup, in any namespace.
func (l *ownListener) own(c *net.UnixConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	same := false
	err = raw.Control(func(fd uintptr) {
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil || cred.Pid == 0 {
			return
		}
		pidfd, err := peerPidfd(int(fd), int(cred.Pid))
		if err != nil {
			return
		}
		defer unix.Close(pidfd)
		same = l.cgroup.Holds(int(cred.Pid)) && unix.PidfdSendSignal(pidfd, 0, nil, 0) == nil
	})
	return err == nil && same
}

// peerPidfd returns a pidfd of the process that connected, and never one of a later process with
// its number. Kernels before 6.5 have the number alone. There, a foreign process that reaches the
// socket, connects and ends is mistaken for a new process of the sandbox with the same number.
func peerPidfd(fd, pid int) (int, error) {
	pidfd, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if errors.Is(err, unix.ENOPROTOOPT) {
		return unix.PidfdOpen(pid, 0)
	}
	return pidfd, err
}
