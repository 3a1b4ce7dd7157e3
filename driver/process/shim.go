package process

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
	"time"

	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/thread"
)

// Descriptors that a shim inherits, by number.
const (
	controlFD = 3 + iota // listener of the control socket
	selfFD               // listener of the instance's API
	notifyFD             // sd_notify datagrams
	liveFD               // reports that the sandbox has a record
)

// shim is the first process of one sandbox. It prepares the mounts, waits for a program, holds it
// and reports its events. If it ends, the kernel ends every process of the sandbox.
type shim struct {
	mu      sync.Mutex
	program *program
	pid     int
	secrets heldFiles
	configs heldFiles
	log     *logFile
	logs    *os.Root
	groups  *os.File // writable cgroups, visible to the shim only
	proc    *os.File // the shim's own /proc: a program that is PID 1 has another
	leader  leader
	hidden  []string     // folders of the host that no instance sees
	first   chan forking // to the thread that is ready to fork the program; nil: used
	loaded  bool         // the program waits before its first instruction
	// barred is set once a reply reported the sandbox as empty: no program may start in it any
	// more.
	barred bool
	// lastPID sets the number before that of the next process of the sandbox. It may be nil.
	lastPID *os.File
	pipe    uint64   // the inode of the pipe of the program's output
	output  *os.File // of a program that is to be thawed
	// entrance leads to the files of images.
	entrance entrance
	// top is the root of the program's files, as the shim sees it: "" for the shim's own.
	top        string
	containers int          // made by a runtime
	users      int          // descriptor of the program's user namespace, if it has one
	network    *os.File     // the host's, for a program that has it
	files      *unix.Rlimit // of the program, where it is in a user namespace
	waits      map[int]chan unix.WaitStatus
	reaping    bool
	events     []pando.SandboxEvent
	news       *sync.Cond

	readyOnce sync.Once
}

// ShimRole is the argument before that of ShimMain.
const ShimRole = "shim"

// ShimMain runs a shim. Its argument is a furniture.
func ShimMain(args []string) int {
	debug.SetGCPercent(50)
	debug.SetMemoryLimit(24 << 20)
	var f furniture
	if len(args) != 1 || os.Getpid() != 1 || json.Unmarshal([]byte(args[0]), &f) != nil {
		fmt.Fprintln(os.Stderr, "pando shim is started by the agent only")
		return 2
	}
	catchSignals()
	// The kernel spares the agent when memory is short. An instance is not spared, and cannot change
	// that.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("0"), 0)
	s := &shim{waits: map[int]chan unix.WaitStatus{}, files: f.openFiles()}
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
		var q request
		f, err := receive(c, &q)
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
		if err := send(c, s.answer(q), -1); err != nil {
			return
		}
	}
}

// hold starts a program, if the request has one, and from then on sends its events.
func (s *shim) hold(c *net.UnixConn, q request) {
	var r reply
	var g *gate
	if q.Run != nil && q.Thaw {
		freezing{s}.thaw(c, *q.Run)
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
		r.Code, s.barred = emptyCode, true
	}
	s.mu.Unlock()
	err := send(c, r, selfFD)
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

func (s *shim) answer(q request) reply {
	var r reply
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
			r.Names, err = configuring{s}.change(*q.Config, q.Install, unix.Signal(q.Signal))
		}
	case "kill":
		s.kill()
	case "pause":
		err = everyone(unix.SIGSTOP)
	case "describe":
		r.Frozen, err = freezing{s}.describe()
	default:
		err = fmt.Errorf("%w: the shim has no verb %q", pando.ErrInvalid, q.Verb)
	}
	if err != nil {
		r.Error = err.Error()
	}
	return r
}

// everyone signals every process of the sandbox except the shim. An empty sandbox is no error.
func everyone(sig syscall.Signal) error {
	if err := unix.Kill(-1, sig); err != nil && err != unix.ESRCH {
		return err
	}
	return nil
}

// signal signals the program, and resumes it if it was paused, so that it can act on the signal.
func (s *shim) signal(sig syscall.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.program != nil && s.program.Idle {
		go s.happened(pando.SandboxEvent{Kind: pando.SandboxExited})
		return everyone(sig)
	}
	if s.pid == 0 {
		return nil
	}
	if err := unix.Kill(s.pid, sig); err != nil {
		return err
	}
	return everyone(unix.SIGCONT)
}

// kill ends every process that the program started, and returns once all are gone.
func (s *shim) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.reaping {
		_ = everyone(unix.SIGKILL)
		s.news.Wait()
	}
}

// tell sends every event, the past ones first.
func (s *shim) tell(c *net.UnixConn) {
	for n := 0; ; n++ {
		s.mu.Lock()
		for n >= len(s.events) {
			s.news.Wait()
		}
		e := s.events[n]
		s.mu.Unlock()
		if err := send(c, reply{Event: &e}, -1); err != nil {
			return
		}
	}
}

func (s *shim) happened(e pando.SandboxEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.events); n > 0 && s.events[n-1].Kind == e.Kind {
		return // a repeated report
	}
	s.events = append(s.events, e)
	s.news.Broadcast()
}

// run starts the program and reports its end. With a gate, it only loads it.
func (s *shim) run(p program, g *gate) error {
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
	if err := (configuring{s}).approve(p); err != nil {
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

// follow writes the program's output to its log and reports its end. It kills a program that cannot
// have a log. The caller holds the lock.
func (s *shim) follow(out *os.File, ended <-chan unix.WaitStatus) error {
	copied := make(chan struct{})
	log, err := openLogFile(s.logs, s.program.LogDir)
	if err == nil {
		s.log = log
		go func() {
			log.copy(out)
			close(copied)
		}()
	} else {
		out.Close()
		close(copied)
		err = errors.Join(err, everyone(unix.SIGKILL))
	}
	go func() {
		status := <-ended
		select {
		case <-copied:
		case <-time.After(outputWaitMax): // a child holds its output open
		}
		e := pando.Exit{Code: status.ExitStatus()}
		if status.Signaled() {
			e.Code, e.Signal = -1, unix.SignalName(status.Signal())
		}
		s.happened(pando.SandboxEvent{Kind: pando.SandboxExited, Exit: e})
	}()
	return err
}

// outputWaitMax is how long the exit of a program waits for the rest of its output.
const outputWaitMax = 50 * time.Millisecond

// start forks a program on a thread that has dropped every privilege it can and has joined the
// instance's cgroups. The program inherits both, and the shim is not charged for it. The first such
// thread is already waiting when a program comes.
//
// The caller holds the lock, so that the program is not reaped before its waiter exists.
func (s *shim) start(p program, gate func() bool) (pid int, out *os.File,
	ended <-chan unix.WaitStatus, err error) {
	out, in, err := os.Pipe()
	if err != nil {
		return 0, nil, nil, err
	}
	defer in.Close()
	// A program may open its own output again, as /dev/stdout.
	if err := in.Chown(int(p.outside(p.UID)), int(p.outside(p.GID))); err != nil {
		out.Close()
		return 0, nil, nil, err
	}
	if s.program == nil {
		s.pipe = inodeOf(in)
	}
	pid, ended, err = s.launch(forking{program: p, stdio: in, gate: gate})
	if err != nil {
		out.Close()
		return 0, nil, nil, err
	}
	return pid, out, ended, nil
}

// launch forks a program as start does, with files of the caller.
func (s *shim) launch(do forking) (pid int, ended <-chan unix.WaitStatus, err error) {
	p := do.program
	do.done, do.users, do.files = make(chan forked, 1), s.users, s.files
	turn := s.first
	if p.Runtime != "" {
		if s.first = nil; turn != nil {
			close(turn)
		}
		return oci{s}.launch(do)
	}
	forks := forker{entry: p.Cgroup, groups: s.groups, apart: p.Layers != nil}
	// The filter of the first thread lets nothing enter a namespace: the program gets its own.
	forks.open = p.Open || forks.raw(p)
	fresh := p.Open || p.HostNet || p.Layers != nil || p.Users != nil
	if p.leads() {
		do.lead, forks.inside = s.leader.pid == 0, s.leader.inside
	}
	if do.lead {
		forks.inside = nil
	}
	if s.first = nil; turn != nil && fresh {
		close(turn) // the thread ends, and leaves the cgroups of the instance
	}
	if turn == nil || fresh {
		turn = make(chan forking, 1)
		if p.HostNet {
			if forks.network = s.network; forks.network == nil {
				return 0, nil, fmt.Errorf("%w: the network of the host did not arrive",
					pando.ErrUnsupported)
			}
		}
		thread.Go(func() { forks.waitToFork(turn) })
	}
	turn <- do
	f := <-do.done
	if f.err != nil {
		return 0, nil, f.err
	}
	ended = awaitEnd(s, f.pid)
	if do.lead {
		if s.leader.inside != nil {
			s.leader.inside.Close()
		}
		// The caller holds the lock, so no reaper has seen its end.
		if s.leader, err = newLeader(s.proc, f.pid); err != nil {
			return 0, nil, errors.Join(err, unix.Kill(f.pid, unix.SIGKILL))
		}
	}
	return f.pid, ended, nil
}

// reap collects the exit of every process of the sandbox, as its init must.
func (s *shim) reap() {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		if err == unix.EINTR || err == nil && status.Stopped() { // waits for its first instruction
			continue
		}
		s.mu.Lock()
		if err != nil {
			s.reaping = len(s.waits) > 0
			again := s.reaping
			s.news.Broadcast()
			s.mu.Unlock()
			if !again {
				return
			}
			continue
		}
		if pid == s.pid {
			s.pid = 0
		}
		if pid == s.leader.pid {
			s.leader.pid = 0
		}
		if c, ok := s.waits[pid]; ok {
			c <- status
			delete(s.waits, pid)
		}
		s.mu.Unlock()
	}
}

// answerExec runs a command and answers. If the asker hangs up first, it kills the command and its
// group.
func (s *shim) answerExec(c *net.UnixConn, command []string) {
	pid, out, ended, err := s.exec(command)
	if err != nil {
		_ = send(c, reply{Error: err.Error()}, -1)
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
		_ = send(c, r, -1)
	case <-hungUp:
		_ = unix.Kill(-group, unix.SIGKILL)
	}
}

// exec starts a command beside the program, with the program's rights and limits.
func (s *shim) exec(command []string) (int, *os.File, <-chan unix.WaitStatus, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.program == nil || s.loaded || s.pid == 0 || len(command) == 0 {
		return 0, nil, nil, fmt.Errorf("%w: nothing runs in the sandbox", pando.ErrNotFound)
	}
	q := *s.program
	q.Argv = command
	return s.start(q, nil)
}
