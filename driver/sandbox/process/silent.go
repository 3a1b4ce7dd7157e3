package process

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/wire"
)

// A shim that does not answer is set aside by name: the sandbox says so with an event, and its
// program runs on. The shim is asked again until it answers or is gone. Only the end of its process
// is the end of its program.

// Times of shims that do not answer.
const (
	shimLook    = 2 * time.Second  // between two looks at all shims
	askAgainMin = time.Second      // before the second question
	askAgainMax = 30 * time.Second // between later ones
)

// silence is what is known about the answers of a shim.
type silence struct {
	mu     sync.Mutex // also guards the watch and the listener of its sandbox
	closed bool       // no events follow
	said   string     // why it does not answer, as last said; "": it does
	asked  bool       // a question is on its way
	doubt  bool       // it did not answer a request in time
}

// say tells the agent that the shim does not answer, and why, or that it answers again ("").
func (b *sandbox) say(why string) {
	b.silence.mu.Lock()
	defer b.silence.mu.Unlock()
	b.silence.doubt = b.silence.doubt && why != ""
	if b.silence.closed || (b.silence.said == "") == (why == "") {
		return
	}
	e := pando.SandboxEvent{Kind: pando.SandboxAnswers}
	if why != "" {
		e = pando.SandboxEvent{Kind: pando.SandboxSilent, Why: why}
	}
	select {
	case b.events <- e:
	default:
		return // the next look says it
	}
	b.silence.said = why
	if why == "" {
		b.d.Log.Info("a shim answers again", "instance", b.slot.Instance)
		return
	}
	b.d.Log.Warn("a shim does not answer; its program runs on, and the shim is asked again", "instance",
		b.slot.Instance, "process", b.slot.PID, "why", why)
}

// over ends the events.
func (b *sandbox) over() {
	b.silence.mu.Lock()
	defer b.silence.mu.Unlock()
	b.silence.closed = true
	close(b.events)
}

// doubts notes that the shim did not answer a request in time.
func (b *sandbox) doubts() {
	b.silence.mu.Lock()
	defer b.silence.mu.Unlock()
	b.silence.doubt = true
}

// answerable returns nil if the shim can answer, else the reason. It asks nothing of the shim.
func (s *slot) answerable() error {
	switch {
	case !s.alive():
		return fmt.Errorf("its shim is gone: %w", pando.ErrNotFound)
	case s.stopped():
		return fmt.Errorf("%w: its shim is stopped; `kill -CONT %d` continues it", pando.ErrNotReady,
			s.PID)
	}
	return nil
}

// wake continues a shim that a signal has stopped.
func (s *slot) wake() {
	fd, err := unix.PidfdOpen(s.PID, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if s.stopped() {
		_ = unix.PidfdSendSignal(fd, unix.SIGCONT, nil, 0) // it may have ended
	}
}

// silent returns the sandbox of a slot whose shim does not answer, for the reason why. Its API is
// served and its events follow once the shim answers.
func (d *Driver) silent(s *slot, why error) *sandbox {
	b := d.newSandbox(s)
	b.listener = &ownListener{cgroup: s.cgroup,
		Listener: &lateListener{come: make(chan struct{}), closed: make(chan struct{})}}
	d.watchShim(b)
	b.silence.asked = true
	b.say(why.Error())
	go func() {
		if b.askAgain() {
			b.listen()
		} else {
			b.tellShimEnd()
		}
	}()
	return b
}

// resume finds out why the talk with a shim ended. It returns true once there is a new one, and
// false if the shim has ended or the agent has left the sandbox.
func (b *sandbox) resume(why error) bool {
	if closed(b.left) || b.slot.endsSoon() {
		return false
	}
	b.silence.mu.Lock()
	b.silence.asked = true
	_ = b.watch.Close()
	b.silence.mu.Unlock()
	b.say(b.slot.unanswered(context.Background(), why).Error())
	return b.askAgain()
}

// askAgain asks the shim until it answers. The past events then follow again. It returns false if
// the shim has ended or the agent has left the sandbox.
func (b *sandbox) askAgain() bool {
	for wait := askAgainMin; ; wait = min(2*wait, askAgainMax) {
		timer, stop := b.d.Clock.After(wait)
		select {
		case <-b.left:
		case <-b.d.done:
		case <-timer:
		}
		stop()
		switch {
		case closed(b.left) || closed(b.d.done) || !b.slot.alive():
			return false
		case b.slot.stopped():
			wait = askAgainMin // to look costs nothing
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), shimWaitMax)
		fresh, err := thawer{b.d}.hold(ctx, b.slot, wire.Request{})
		cancel()
		if err != nil {
			b.d.Log.Debug("a shim still does not answer", "instance", b.slot.Instance, "error", err)
			continue
		}
		b.d.forgetShim(fresh)
		if fresh.empty {
			fresh.close() // it was claimed and never used
			return false
		}
		if !b.join(fresh) {
			return false
		}
		b.say("")
		return true
	}
}

// join takes over the new talk with the shim. It returns false if the agent has left the sandbox.
func (b *sandbox) join(fresh *sandbox) bool {
	b.silence.mu.Lock()
	defer b.silence.mu.Unlock()
	if closed(b.left) {
		fresh.close()
		return false
	}
	b.watch, b.silence.asked = fresh.watch, false
	if late, ok := b.listener.Listener.(*lateListener); !ok || !late.fill(fresh.listener.Listener) {
		fresh.listener.Close()
	}
	return true
}

// endsSoon reports whether the shim ends within about a second. A connection ends before its process.
func (s *slot) endsSoon() bool {
	const looks, lookMilliseconds = 10, 100
	fd, err := unix.PidfdOpen(s.PID, 0)
	if err != nil {
		return !s.alive()
	}
	defer unix.Close(fd)
	for range looks {
		if !s.alive() {
			return true
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, lookMilliseconds)
		if n > 0 || err != nil && err != unix.EINTR {
			return n > 0 || !s.alive()
		}
	}
	return false
}

func (d *Driver) watchShim(b *sandbox) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.boxes[b] = true
}

func (d *Driver) forgetShim(b *sandbox) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.boxes, b)
}

// watchShims looks at the shims of all sandboxes. A stopped one answers nothing and looks alive to
// every program that asks it nothing.
func (d *Driver) watchShims() {
	defer d.wg.Done()
	for {
		timer, stop := d.Clock.After(shimLook)
		select {
		case <-d.done:
			stop()
			return
		case <-timer:
		}
		d.mu.Lock()
		all := make([]*sandbox, 0, len(d.boxes))
		for b := range d.boxes {
			all = append(all, b)
		}
		d.mu.Unlock()
		for _, b := range all {
			b.look()
		}
	}
}

// look notes a stopped shim, and asks one that was silent.
func (b *sandbox) look() {
	stopped := b.slot.stopped()
	b.silence.mu.Lock()
	asks := !stopped && !b.silence.asked && (b.silence.said != "" || b.silence.doubt)
	mine := !b.silence.asked
	b.silence.asked = b.silence.asked || asks
	b.silence.mu.Unlock()
	if stopped && mine {
		b.say(b.slot.stoppedText())
	}
	if !asks {
		return
	}
	b.d.wg.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), shimWaitMax)
		defer cancel()
		_, err := b.ask(ctx, wire.Request{Verb: "ping"})
		b.silence.mu.Lock()
		b.silence.asked = false
		b.silence.mu.Unlock()
		if err == nil {
			b.say("")
		} else if b.slot.alive() {
			b.say(err.Error())
		}
	})
}

func (s *slot) stoppedText() string {
	return fmt.Sprintf("its shim is stopped; `kill -CONT %d` on its host continues it", s.PID)
}

// lateListener is the listener of a sandbox whose shim has not given it yet.
type lateListener struct {
	mu     sync.Mutex
	real   net.Listener
	come   chan struct{} // closed once real is there
	closed chan struct{}
	once   sync.Once
}

// fill gives the listener. It returns false if it has one, or is closed.
func (l *lateListener) fill(real net.Listener) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.real != nil || closed(l.closed) {
		return false
	}
	l.real = real
	close(l.come)
	return true
}

// Accept implements net.Listener.
func (l *lateListener) Accept() (net.Conn, error) {
	select {
	case <-l.closed:
		return nil, net.ErrClosed
	case <-l.come:
		return l.real.Accept()
	}
}

// Close implements net.Listener.
func (l *lateListener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.once.Do(func() { close(l.closed) })
	if l.real == nil {
		return nil
	}
	return l.real.Close()
}

// Addr implements net.Listener.
func (l *lateListener) Addr() net.Addr { return &net.UnixAddr{Net: "unix"} }
