package shim

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/wire"
)

// awaitEnd returns the end of a child. The caller holds the lock.
func awaitEnd(s *shim, pid int) <-chan unix.WaitStatus {
	c := make(chan unix.WaitStatus, 1)
	s.waits[pid] = c
	if !s.reaping {
		s.reaping = true
		go s.reap()
	}
	return c
}

// describe returns the program for a snapshot.
func (s *shim) describe() (*wire.Frozen, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.program == nil || s.loaded || s.pid == 0 {
		return nil, fmt.Errorf("%w: nothing runs in the sandbox", pando.ErrNotFound)
	}
	p := s.program
	return &wire.Frozen{PID: s.pid, UID: p.IDOutside(p.UID), GID: p.IDOutside(p.GID), Pipe: s.pipe,
		Users: p.Users != nil, Layers: p.Layers != nil}, nil
}

// thaw makes the sandbox ready for a frozen program, and follows the program once it runs.
func (s *shim) thaw(c *net.UnixConn, p wire.Program) {
	var r wire.Reply
	out, err := s.prepareThaw(p)
	if err != nil {
		r.Error = err.Error()
	} else {
		r.Frozen = &wire.Frozen{Output: int(s.output.Fd())}
	}
	if wire.Send(c, r, selfFD) != nil || err != nil {
		return
	}
	var q wire.Request
	if _, err := wire.Receive(c, &q); err != nil || q.Verb != "go" || q.PID == 0 {
		os.Exit(1) // the sandbox ends with everything in it
	}
	s.mu.Lock()
	s.output.Close()
	s.loaded, s.pid = false, q.PID
	err = s.follow(out, awaitEnd(s, q.PID))
	s.mu.Unlock()
	if err != nil {
		fmt.Fprintln(os.Stderr, "pando shim:", err)
	}
	s.tell(c)
}

// prepareThaw prepares the sandbox and returns the output of the program that comes.
func (s *shim) prepareThaw(p wire.Program) (out *os.File, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ready(s, p); err != nil {
		return nil, err
	}
	out, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	if err := in.Chown(int(p.IDOutside(p.UID)), int(p.IDOutside(p.GID))); err != nil {
		return nil, errors.Join(err, out.Close(), in.Close())
	}
	p.Secrets, p.Configs = nil, nil
	s.program, s.loaded, s.output, s.pipe = &p, true, in, inodeOf(in)
	return out, nil
}

// highPID lets the next process be pidFirst. Without the file the kernel cannot thaw it.
func highPID(last *os.File) {
	if last != nil {
		_, _ = last.WriteAt([]byte(strconv.Itoa(wire.PidFirst-1)), 0)
	}
}

func inodeOf(f *os.File) uint64 {
	st, err := f.Stat()
	if err != nil {
		return 0
	}
	return st.Sys().(*syscall.Stat_t).Ino
}

// ready brings the sandbox to the state in which a program of an instance begins. The caller holds
// the lock.
func ready(s *shim, p wire.Program) error {
	if s.program != nil {
		return fmt.Errorf("%w: the sandbox runs %s", pando.ErrExists, s.program.Instance)
	}
	if err := serveVIPs(p.VIPs); err != nil {
		return err
	}
	if p.Users != nil {
		var err error
		if s.users, err = makeUsers(*p.Users); err != nil {
			return err
		}
	}
	if err := setKernel(p.Sysctls); err != nil {
		return err
	}
	place := s.settle
	if p.Layers != nil {
		place = s.enter
	}
	return place(p)
}
