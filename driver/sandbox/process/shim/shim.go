// Package shim holds one sandbox from inside. A shim is the first process of its sandbox: it furnishes
// the view of files, starts the program, passes on signals and output, and reports the end.
//
// All of its code runs in the namespaces of the sandbox, in part as root of the host. It reads only
// what the driver sends (package wire), and what a program writes it takes for hostile.
package shim

import (
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/logfile"
	"pando.run/pando/driver/sandbox/process/wire"
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
	program *wire.Program
	pid     int
	secrets heldFiles
	configs heldFiles
	log     *logfile.Writer
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
	containers int               // made by a runtime
	users      int               // descriptor of the program's user namespace, if it has one
	network    *os.File          // the host's, for a program that has it
	files      *unix.Rlimit      // of the program, where it is in a user namespace
	entry      pando.CgroupEntry // into the cgroups of the sandbox, before a spec adds one
	waits      map[int]chan unix.WaitStatus
	reaping    bool
	events     []pando.SandboxEvent
	news       *sync.Cond

	readyOnce sync.Once
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
		if err := wire.Send(c, wire.Reply{Event: &e}, -1); err != nil {
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

// follow writes the program's output to its log and reports its end. It kills a program that cannot
// have a log. The caller holds the lock.
func (s *shim) follow(out *os.File, ended <-chan unix.WaitStatus) error {
	copied := make(chan struct{})
	log, err := logfile.Open(s.logs, s.program.LogDir)
	if err == nil {
		s.log = log
		go func() {
			log.Copy(out)
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

// entrance holds what a shim needs to enter an image later: descriptors of folders that the
// sandbox does not see.
type entrance struct {
	layers, self, resolv int // -1: none
}
