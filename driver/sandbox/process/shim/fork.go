package shim

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/view"
	"pando.run/pando/driver/sandbox/process/wire"
)

// forking is a request to start a program, and its result.
type forking struct {
	program wire.Program
	stdio   *os.File
	done    chan forked
	// gate keeps the loaded program before its first instruction until it returns: true starts it,
	// false ends it. It may be nil.
	gate func() bool
	// Of a session: its input and its errors, where they are not /dev/null and stdio, and whether
	// they are its terminal.
	stdin, stderr *os.File
	terminal      bool
	users         int          // descriptor of the user namespace of a program with one
	lead          bool         // it becomes PID 1 of a namespace of its own
	files         *unix.Rlimit // bound of its open files; Go raises that of the shim
}

type forked struct {
	pid int
	err error
}

// forker is a thread that forks one program.
type forker struct {
	entry   pando.CgroupEntry
	groups  *os.File // the root of the hierarchies
	open    bool     // this thread has no filter of system calls
	network *os.File // that of the program, or nil
	inside  *os.File // the PID namespace of the program, or nil
	apart   bool     // it sees its own cgroup only
}

// raw reports whether the thread forks by spawn, which needs a thread without a filter. A program
// enters its v2 cgroup itself.
func (f forker) raw(p wire.Program) bool {
	return p.Users != nil || len(p.Limits) > 0 || p.Umask != "" || p.IsPID1() || f.entry.Folder != ""
}

// waitToFork drops the privileges of this thread, then waits for a program and forks it.
func (t forker) waitToFork(turn <-chan forking) {
	e := t.entry
	err := enterNetwork(t.network)
	if err == nil {
		err = enterProcesses(t.inside)
	}
	if err == nil {
		err = weaken()
	}
	if err == nil {
		err = enter(e, t.groups)
	}
	if err == nil {
		err = t.enterApart()
	}
	if err == nil && !t.open {
		err = filterCalls()
	}
	f, ok := <-turn
	if !ok {
		return // another thread forks the program
	}
	r := forked{err: err}
	traced := f.gate != nil
	if err == nil {
		r.pid, r.err = t.fork(f, &syscall.SysProcAttr{
			Setsid: true, Ptrace: traced, Setctty: f.terminal,
			Credential: &syscall.Credential{
				Uid: f.program.UID, Gid: f.program.GID, Groups: f.program.Groups,
			},
		})
	}
	if !traced || r.err != nil {
		f.done <- r
		return
	}
	r.err = loaded(r.pid)
	f.done <- r
	// The thread traces the program until here. It must not end earlier: the kernel would then
	// release the program.
	goes := r.err == nil && f.gate()
	if !goes || syscall.PtraceDetach(r.pid) != nil {
		_ = unix.Kill(r.pid, unix.SIGKILL)
	}
}

// loaded waits until the kernel stops a traced program before its first instruction.
func loaded(pid int) error {
	var status unix.WaitStatus
	for {
		_, err := unix.Wait4(pid, &status, unix.WALL, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return fmt.Errorf("wait for a program to be loaded: %w", err)
		case !status.Stopped():
			return fmt.Errorf("%w: the program ended while it was loaded", pando.ErrNotReady)
		default:
			return nil
		}
	}
}

// fork starts a program from this thread.
func (t forker) fork(f forking, attr *syscall.SysProcAttr) (int, error) {
	p := f.program
	path, err := view.LookPath(p)
	if err != nil {
		return 0, err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	stdin, stderr := cmp.Or(f.stdin, null), cmp.Or(f.stderr, f.stdio)
	files := []uintptr{stdin.Fd(), f.stdio.Fd(), stderr.Fd()}
	var pid int
	if t.raw(p) {
		pid, err = t.forkRaw(f, path, [3]uintptr(files), attr.Ptrace)
	} else {
		pid, err = syscall.ForkExec(path, p.Argv, &syscall.ProcAttr{
			Dir: p.Dir, Env: p.Env, Files: files, Sys: attr,
		})
	}
	switch {
	case errors.Is(err, syscall.ENOEXEC):
		return 0, fmt.Errorf("start %s: it is no program that this kernel can run; a script needs a "+
			"first line like #!/bin/sh", path)
	case errors.Is(err, syscall.ENOMEM) && t.inside != nil:
		return 0, fmt.Errorf("%w: start %s: the program of the instance has ended", pando.ErrNotFound, path)
	case errors.Is(err, syscall.EAGAIN):
		return 0, fmt.Errorf("start %s: the sandbox is full: it has as many processes and threads as "+
			"`resources.pids` in the spec allows (%d unless given)", path, pando.PIDsDefault)
	case errors.Is(err, syscall.EACCES):
		return 0, fmt.Errorf("start %s in %s as uid %d: permission denied; check the permissions of "+
			"the folder and the file, or set %s in the spec", path, p.Dir, p.UID, p.Remedy())
	case errors.Is(err, syscall.ENOENT):
		return 0, fmt.Errorf("start %s: %w", path, cmp.Or(view.WhyAbsent(p, path), err))
	case err != nil:
		return 0, fmt.Errorf("start %s: %w", path, err)
	}
	return pid, nil
}

// forkRaw starts a program in the namespaces of its service.
func (t forker) forkRaw(f forking, path string, files [3]uintptr, traced bool) (int, error) {
	p := f.program
	s := &spawning{
		files: files, users: -1, uid: uintptr(p.UID), gid: uintptr(p.GID),
		groups: p.Groups, terminal: f.terminal, traced: traced, openFiles: f.files,
	}
	if p.Users != nil {
		s.users = f.users
	}
	if p.Users != nil && p.Layers != nil && p.UID == 0 {
		s.keep(imageRoot)
	}
	if f.lead {
		s.clone, s.mounts = unix.CLONE_NEWPID, procMounts()
	}
	var err error
	if s.limits, err = within(p.Limits); err != nil {
		return 0, err
	}
	if s.umask, err = maskOf(p.Umask); err != nil {
		return 0, err
	}
	if t.entry.Folder != "" {
		s.groups2, s.apart = t.groups.Fd(), t.apart
		s.group, err = unix.BytePtrFromString(local(t.entry.Folder) + "/cgroup.procs")
		if err != nil {
			return 0, err
		}
	}
	if s.path, err = unix.BytePtrFromString(path); err != nil {
		return 0, err
	}
	if s.dir, err = unix.BytePtrFromString(p.Dir); err != nil {
		return 0, err
	}
	if s.argv, err = syscall.SlicePtrFromStrings(p.Argv); err != nil {
		return 0, err
	}
	if s.envv, err = syscall.SlicePtrFromStrings(p.Env); err != nil {
		return 0, err
	}
	if !p.Open {
		if s.filter, err = callFilter(); err != nil {
			return 0, err
		}
	}
	return spawn(s)
}

// enter makes a program that this thread forks a member of its v1 cgroups: the thread itself joins.
// No thread id is ever written to cgroup.procs, which would move the whole shim.
func enter(e pando.CgroupEntry, groups *os.File) error {
	for _, file := range e.Tasks {
		// 0 is the writing thread. For its own id the kernel need not stop all forks of the machine
		// first. That stop waits for an RCU grace period: 9 ms for each group instead of 0.2.
		if err := writeBelow(groups, local(file), "0"); err != nil {
			return fmt.Errorf("join the cgroup %s: %w", filepath.Dir(file), err)
		}
	}
	return nil
}

// enterApart makes the cgroup of this thread the root of all that it sees of cgroups: programs
// compare the path there with their mounts. CRIU freezes no program with such a namespace, so
// programs of the host have none. A program enters its v2 cgroup itself.
func (t forker) enterApart() error {
	if !t.apart || t.entry.Folder != "" {
		return nil
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("see no cgroups but its own: %w", err)
	}
	return nil
}

// weaken gives up every privilege that a thread can give up for itself and its children.
func weaken() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("give up new privileges: %w", err)
	}
	for capability := uintptr(0); capability <= unix.CAP_LAST_CAP; capability++ {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0); err != nil &&
			!errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("give up capability %d: %w", capability, err)
		}
	}
	return nil
}

// catchSignals lets programs begin with the default actions of signals. A daemon that nohup or a
// shell's background started ignores some of them. A program inherits the signals that its shim
// ignores, and not those that its shim catches.
func catchSignals() {
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP, unix.SIGINT, unix.SIGQUIT)
}

// groupOf returns the group of processes that a command leads: its own, or the one that a runtime
// made for it.
func groupOf(pid int) int {
	if group, err := unix.Getpgid(pid); err == nil && group > 1 {
		return group
	}
	return pid
}
