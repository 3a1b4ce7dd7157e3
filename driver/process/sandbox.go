package process

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

var _ pando.Sandbox = (*sandbox)(nil)

// sandbox is a slot with a program, as an agent holds it.
type sandbox struct {
	d        *Driver
	slot     *slot
	events   chan pando.SandboxEvent
	listener *ownListener
	mu       sync.Mutex // one request at a time
	conn     *net.UnixConn
	watch    *net.UnixConn
	ended    chan struct{} // closed once the program has exited
	once     sync.Once
}

// open connects to the shim of a slot.
func (d *Driver) open(s *slot) (*sandbox, error) {
	b := &sandbox{d: d, slot: s, events: make(chan pando.SandboxEvent, 16), ended: make(chan struct{})}
	var err error
	if b.conn, err = dialShim(s); err != nil {
		return nil, err
	}
	if b.watch, err = dialShim(s); err != nil {
		b.conn.Close()
		return nil, err
	}
	if err = send(b.conn, request{Verb: "listener"}, -1); err == nil {
		var r reply
		var f *os.File
		if f, err = receive(b.conn, &r); err == nil {
			b.listener, err = newOwnListener(f, s.PID)
		}
	}
	if err == nil {
		err = send(b.watch, request{Verb: "events"}, -1)
	}
	if err != nil {
		b.close()
		return nil, fmt.Errorf("talk to the shim of %s: %w", s.Instance, err)
	}
	go b.listen()
	return b, nil
}

func dialShim(s *slot) (*net.UnixConn, error) {
	if !s.alive() {
		return nil, fmt.Errorf("the shim of %s: %w", s.Instance, pando.ErrNotFound)
	}
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: s.control(), Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("reach the shim of %s: %w", s.Instance, err)
	}
	return c, nil
}

func (b *sandbox) close() {
	b.once.Do(func() {
		b.conn.Close()
		if b.watch != nil {
			b.watch.Close()
		}
		if b.listener != nil {
			b.listener.Close()
		}
	})
}

// listen passes on what the shim tells. A shim that is gone has taken its program with it.
func (b *sandbox) listen() {
	defer close(b.events)
	for {
		var r reply
		_, err := receive(b.watch, &r)
		if err != nil {
			r.Event = &pando.SandboxEvent{Kind: pando.SandboxExited, Exit: pando.Exit{Code: -1, Signal: "SIGKILL (its shim ended)"}}
		}
		if r.Event == nil {
			continue
		}
		e := *r.Event
		if e.Kind == pando.SandboxExited {
			e.Exit.OOMKilled = e.Exit.Signal == "SIGKILL" && b.slot.cgroup.oomKilled()
			e.Exit.LastLines = b.LastLines(20)
			b.events <- e
			close(b.ended)
			return
		}
		b.events <- e
	}
}

func (b *sandbox) ask(q request) (reply, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var r reply
	if err := send(b.conn, q, -1); err != nil {
		return r, fmt.Errorf("%s: the shim is gone: %w", q.Verb, err)
	}
	if _, err := receive(b.conn, &r); err != nil {
		return r, fmt.Errorf("%s: the shim is gone: %w", q.Verb, err)
	}
	if r.Error != "" {
		return r, errors.New(r.Error)
	}
	return r, nil
}

func (b *sandbox) Instance() pando.InstanceID        { return b.slot.Instance }
func (b *sandbox) Service() pando.ServiceKey         { return b.slot.Service }
func (b *sandbox) Listener() net.Listener            { return b.listener }
func (b *sandbox) Events() <-chan pando.SandboxEvent { return b.events }

func (b *sandbox) Link() pando.Link {
	s := b.slot
	mac, _ := net.ParseMAC(s.MAC)
	hostMAC, _ := net.ParseMAC(s.HostMAC)
	return pando.Link{IP4: s.IP4, IP6: s.IP6, IfIndex: s.IfIndex, Host: s.Link, MAC: mac, HostMAC: hostMAC, Netns: s.netns()}
}

func (b *sandbox) Pause(context.Context) error {
	_, err := b.ask(request{Verb: "pause"})
	return err
}

func (b *sandbox) Resume(context.Context) error {
	_, err := b.ask(request{Verb: "resume"})
	return err
}

func (b *sandbox) signal(s unix.Signal) error {
	_, err := b.ask(request{Verb: "signal", Signal: int(s)})
	return err
}

// Stop implements pando.Sandbox.
func (b *sandbox) Stop(ctx context.Context) error {
	sig := unix.SignalNum(b.slot.Spec.StopSignal)
	if sig == 0 {
		sig = unix.SIGTERM
	}
	if err := b.signal(sig); err != nil {
		return fmt.Errorf("stop %s: %w", b.slot.Instance, err)
	}
	timer, stop := b.d.Clock.After(pando.Seconds(b.slot.Spec.StopSeconds))
	defer stop()
	select {
	case <-b.ended:
		return nil
	case <-timer:
	case <-ctx.Done():
	}
	if err := b.signal(unix.SIGKILL); err != nil {
		return fmt.Errorf("kill %s: %w", b.slot.Instance, err)
	}
	<-b.ended
	return nil
}

// Remove implements pando.Sandbox.
func (b *sandbox) Remove(context.Context) error {
	_ = unix.Kill(b.slot.PID, unix.SIGKILL)
	b.close()
	b.d.wg.Add(1)
	go func() {
		defer b.d.wg.Done()
		if err := b.slot.destroy(); err != nil {
			b.d.Log.Error("a sandbox is not wholly gone", "instance", b.slot.Instance, "error", err)
		}
		b.d.free(b.slot.Number)
	}()
	return nil
}

// Exec implements pando.Sandbox.
func (b *sandbox) Exec(_ context.Context, command []string) (int, []byte, error) {
	r, err := b.ask(request{Verb: "exec", Command: command})
	return r.Code, r.Output, err
}

// Usage implements pando.Sandbox.
func (b *sandbox) Usage(context.Context) (pando.Usage, error) { return b.slot.cgroup.usage(), nil }

// LastLines implements pando.Sandbox.
func (b *sandbox) LastLines(n int) []string {
	return lastLines(b.d.logDir(b.slot.Service, b.slot.Instance), n)
}

// ownListener is the listener of an instance's own API. It accepts connections from its own sandbox only.
type ownListener struct {
	net.Listener
	space   string // the sandbox's pid namespace
	foreign atomic.Int64
}

func newOwnListener(f *os.File, shim int) (*ownListener, error) {
	if f == nil {
		return nil, fmt.Errorf("%w: the shim sent no listener", pando.ErrInvalid)
	}
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	space, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", shim))
	if err != nil {
		l.Close()
		return nil, err
	}
	return &ownListener{Listener: l, space: space}, nil
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

// own says whether the process at the other end lives in the sandbox. The pidfd makes sure that the process that was
// looked at is the one that connected, and not another that got its number since.
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
		pidfd, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD)
		if err != nil {
			return
		}
		defer unix.Close(pidfd)
		space, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", cred.Pid))
		same = err == nil && space == l.space && unix.PidfdSendSignal(pidfd, 0, nil, 0) == nil
	})
	return err == nil && same
}
