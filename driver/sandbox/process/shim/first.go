package shim

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The program of an image is PID 1 of a PID namespace of its own, as in other container runtimes:
// images with an init of their own refuse any other number, and scripts write to /proc/1/fd/1. The
// shim stays outside, in the namespace around it, so the end of the shim still ends everything.
// Commands beside the program enter its namespace. Its end ends them.
//
// With `init` the shim itself is PID 1: it reaps orphans, and the program keeps the default actions
// of signals. Programs of the host always have that: CRIU freezes no program with a PID namespace
// of its own from outside.

// leader is the process that is PID 1 of the namespace of an image's programs.
type leader struct {
	pid    int      // as the shim sees it; 0: none
	inside *os.File // the PID namespace
}

// newLeader returns the leader of a new PID 1 by the shim's /proc. It may have ended already.
func newLeader(proc *os.File, pid int) (leader, error) {
	inside, err := openBelow(proc, strconv.Itoa(pid)+"/ns/pid", unix.O_RDONLY)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
		return leader{}, nil
	}
	if err != nil {
		return leader{}, fmt.Errorf("keep the processes of the program: %w", err)
	}
	return leader{pid, inside}, nil
}

// enterProcesses makes the processes that this thread forks members of a PID namespace. Nil: they
// are members of the shim's.
func enterProcesses(inside *os.File) error {
	if inside == nil {
		return nil
	}
	if err := unix.Setns(int(inside.Fd()), unix.CLONE_NEWPID); err != nil {
		return fmt.Errorf("enter the processes of the program: %w", err)
	}
	return nil
}

// mountCall is one mount that a child makes in raw system calls (spawnChild). Without a kind and a
// source it unmounts the target.
type mountCall struct {
	source, target, kind *byte
	flags                uintptr
	readOnly             bool // a second call makes it so
	optional             bool // the target may be missing
	attr                 unix.MountAttr
}

//go:norace
//go:nosplit
func (m *mountCall) call() (failed syscall.Errno) {
	target := uintptr(unsafe.Pointer(m.target))
	if m.source == nil {
		_, _, failed = syscall.RawSyscall(unix.SYS_UMOUNT2, target, m.flags, 0)
		return failed
	}
	_, _, failed = syscall.RawSyscall6(unix.SYS_MOUNT, uintptr(unsafe.Pointer(m.source)), target,
		uintptr(unsafe.Pointer(m.kind)), m.flags, 0, 0)
	if failed == syscall.ENOENT && m.optional {
		return 0
	}
	if failed != 0 || !m.readOnly {
		return failed
	}
	m.attr.Attr_set = unix.MOUNT_ATTR_RDONLY
	at := unix.AT_FDCWD
	_, _, failed = syscall.RawSyscall6(unix.SYS_MOUNT_SETATTR, uintptr(at), target, 0,
		uintptr(unsafe.Pointer(&m.attr)), unsafe.Sizeof(m.attr), 0)
	return failed
}

// The files of /proc that are the machine's: no program changes the first ones, or reads the second.
var (
	procReadOnly = []string{"bus", "fs", "irq", "sys", "sysrq-trigger"}
	procHidden   = []string{"kcore", "keys", "latency_stats", "timer_list", "kmsg"}
)

// filesBelow returns the paths of names in a folder.
func filesBelow(dir string, names []string) (out []string) {
	for _, name := range names {
		out = append(out, path.Join(dir, name))
	}
	return out
}

// procMounts are the mounts of the /proc of a program that is PID 1, in place of the shim's.
var procMounts = sync.OnceValue(func() (out []mountCall) {
	text := func(s string) *byte { return &append([]byte(s), 0)[0] }
	proc, none := text("/proc"), text("")
	out = append(out, mountCall{target: proc, flags: unix.MNT_DETACH | unix.UMOUNT_NOFOLLOW},
		mountCall{source: text("proc"), target: proc, kind: text("proc"), flags: inert})
	for _, name := range procReadOnly {
		at := text(path.Join("/proc", name))
		out = append(out, mountCall{source: at, target: at, kind: none,
			flags: unix.MS_BIND | unix.MS_REC, readOnly: true, optional: true})
	}
	for _, name := range procHidden {
		out = append(out, mountCall{source: text("/dev/null"), target: text(path.Join("/proc", name)),
			kind: none, flags: unix.MS_BIND, optional: true})
	}
	return out
})

// readBelow reads a file below an open folder.
func readBelow(dir *os.File, name string) ([]byte, error) {
	f, err := openBelow(dir, name, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

// openBelow opens a file below an open folder.
func openBelow(dir *os.File, name string, flags int) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path.Join(dir.Name(), name), Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// writeBelow writes a file below an open folder.
func writeBelow(dir *os.File, name, text string) error {
	f, err := openBelow(dir, name, unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(text)
	return err
}
