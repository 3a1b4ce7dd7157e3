package shim

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/wire"
	"pando.run/pando/driver/sandbox/thread"
)

// start forks a program on a thread that has dropped every privilege it can and has joined the
// instance's cgroups. The program inherits both, and the shim is not charged for it. The first such
// thread is already waiting when a program comes.
//
// The caller holds the lock, so that the program is not reaped before its waiter exists.
func (s *shim) start(p wire.Program, gate func() bool) (pid int, out *os.File,
	ended <-chan unix.WaitStatus, err error) {
	out, in, err := os.Pipe()
	if err != nil {
		return 0, nil, nil, err
	}
	defer in.Close()
	// A program may open its own output again, as /dev/stdout.
	if err := in.Chown(int(p.IDOutside(p.UID)), int(p.IDOutside(p.GID))); err != nil {
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
		return s.launchByRuntime(do)
	}
	forks := forker{entry: p.Cgroup, groups: s.groups, apart: p.Layers != nil}
	// The filter of the first thread lets nothing enter a namespace: the program gets its own.
	forks.open = p.Open || forks.raw(p)
	fresh := p.Open || p.HostNet || p.Layers != nil || p.Users != nil ||
		!slices.Equal(p.Cgroup.Tasks, s.entry.Tasks) // the first thread is not in all of its cgroups
	if p.IsPID1() {
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
