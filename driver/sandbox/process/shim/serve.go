package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/wire"
	"pando.run/pando/driver/sandbox/thread"
)

// Main runs a shim. Its argument is a furniture.
func Main(args []string) int {
	debug.SetGCPercent(50)
	debug.SetMemoryLimit(24 << 20)
	var f wire.Furniture
	if len(args) != 1 || os.Getpid() != 1 || json.Unmarshal([]byte(args[0]), &f) != nil {
		fmt.Fprintln(os.Stderr, "pando shim is started by the agent only")
		return 2
	}
	catchSignals()
	// The kernel spares the agent when memory is short. An instance is not spared, and cannot change
	// that.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("0"), 0)
	s := &shim{waits: map[int]chan unix.WaitStatus{}, files: f.OpenFiles(), entry: f.Entry}
	s.lastPID, _ = os.OpenFile("/proc/sys/kernel/ns_last_pid", os.O_WRONLY, 0)
	// The program must not inherit the sockets that command its shim.
	err := unix.CloseRange(controlFD, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC)
	if err == nil {
		err = s.keepWritable(f)
	}
	if err == nil {
		err = s.keepEntrance(f)
	}
	if err == nil {
		err = s.furnish(f)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "pando shim:", err)
		return 1
	}
	if s.proc, err = os.Open("/proc"); err != nil {
		fmt.Fprintln(os.Stderr, "pando shim:", err)
		return 1
	}
	s.news = sync.NewCond(&s.mu)
	go func() {
		if n, _ := os.NewFile(liveFD, "live").Read(make([]byte, 1)); n == 0 {
			os.Exit(1) // the agent died before the sandbox had a record
		}
	}()
	first := make(chan forking)
	s.first = first
	forks := forker{entry: f.Entry, groups: s.groups, open: f.Entry.Folder != ""}
	thread.Go(func() { forks.waitToFork(first) })
	go s.listenNotify()
	control, err := net.FileListener(os.NewFile(controlFD, "control"))
	if err != nil {
		fmt.Fprintln(os.Stderr, "pando shim:", err)
		return 1
	}
	for {
		c, err := control.Accept()
		if err != nil {
			return 1
		}
		go func() {
			if c := c.(*net.UnixConn); isRoot(c) {
				s.serve(c)
			}
			c.Close()
		}()
	}
}

// isRoot reports whether root is at the other end. Only root may command a shim, because the caller
// chooses the program's user.
func isRoot(c *net.UnixConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	root := false
	err = raw.Control(func(fd uintptr) {
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		root = err == nil && cred.Uid == 0
	})
	return err == nil && root
}

func (s *shim) serve(c *net.UnixConn) {
	defer c.Close()
	for {
		var q wire.Request
		f, err := wire.Receive(c, &q)
		if err != nil {
			return
		}
		switch q.Verb {
		case "hold":
			keepNetwork(s, f)
			s.hold(c, q)
			return
		case "exec":
			s.answerExec(c, q.Command)
			return
		case "session":
			if q.Session != nil {
				s.visit(c, *q.Session)
			}
			return
		}
		if err := wire.Send(c, s.answer(q), -1); err != nil {
			return
		}
	}
}

// hold starts a program, if the request has one, and from then on sends its events.
func (s *shim) hold(c *net.UnixConn, q wire.Request) {
	var r wire.Reply
	var g *gate
	if q.Run != nil && q.Thaw {
		s.thaw(c, *q.Run)
		return
	}
	if q.Run != nil {
		if q.Load {
			g = &gate{s: s, c: c, told: make(chan struct{}), open: make(chan bool, 1)}
		}
		if err := s.run(*q.Run, g); err != nil {
			r.Error = err.Error()
			_ = errors.As(err, &r.Refused)
		}
	}
	s.mu.Lock()
	if q.Run == nil && (s.program == nil || s.loaded) {
		r.Code, s.barred = wire.EmptyCode, true
	}
	s.mu.Unlock()
	err := wire.Send(c, r, selfFD)
	if g != nil && r.Error == "" {
		close(g.told)
		if !<-g.open {
			return
		}
		s.begun(g)
	}
	if err == nil {
		s.tell(c)
	}
}

func (s *shim) answer(q wire.Request) wire.Reply {
	var r wire.Reply
	var err error
	switch q.Verb {
	case "ping": // it answers
	case "notify":
		s.happened(pando.SandboxEvent{Kind: pando.SandboxNotified})
	case "signal":
		err = s.signal(syscall.Signal(q.Signal))
	case "renew":
		r.Names, err = s.renew(q.Secrets, q.Signals)
	case "configure":
		if q.Config != nil {
			r.Names, err = s.changeConfig(*q.Config, q.Install, unix.Signal(q.Signal))
		}
	case "kill":
		s.kill()
	case "pause":
		err = everyone(unix.SIGSTOP)
	case "describe":
		r.Frozen, err = s.describe()
	default:
		err = fmt.Errorf("%w: the shim has no verb %q", pando.ErrInvalid, q.Verb)
	}
	if err != nil {
		r.Error = err.Error()
	}
	return r
}

// answerExec runs a command and answers. If the asker hangs up first, it kills the command and its
// group.
func (s *shim) answerExec(c *net.UnixConn, command []string) {
	pid, out, ended, err := s.exec(command)
	if err != nil {
		_ = wire.Send(c, wire.Reply{Error: err.Error()}, -1)
		return
	}
	defer out.Close()
	group, done := groupOf(pid), outcome(out, ended)
	hungUp := make(chan struct{})
	go func() {
		_, _ = c.Read(make([]byte, 1))
		close(hungUp)
	}()
	select {
	case r := <-done:
		_ = wire.Send(c, r, -1)
	case <-hungUp:
		_ = unix.Kill(-group, unix.SIGKILL)
	}
}

// run starts the program and reports its end. With a gate, it only loads it.
func (s *shim) run(p wire.Program, g *gate) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ready(s, p); err != nil {
		return err
	}
	if p.Idle {
		p.Secrets, p.Configs = nil, nil
		s.program = &p
		return nil
	}
	if err := s.approveConfigs(p); err != nil {
		return err
	}
	var wait func() bool
	if g != nil {
		wait = g.wait
	}
	highPID(s.lastPID)
	pid, out, ended, err := s.start(p, wait)
	if err != nil {
		return err
	}
	p.Secrets, p.Configs = nil, nil
	s.program, s.pid = &p, pid
	if g != nil {
		s.loaded, g.out, g.ended = true, out, ended
		return nil
	}
	return s.follow(out, ended) // the program has already begun
}

// begun follows a loaded program after its release.
func (s *shim) begun(g *gate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Without a log the program is killed, and its exit is reported.
	_ = s.follow(g.out, g.ended)
}
