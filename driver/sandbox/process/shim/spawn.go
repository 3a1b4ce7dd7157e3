package shim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// spawning is a program that is to start in namespaces of its own. Go's own fork cannot: the child
// has to make mounts, enter its cgroup and its users, give up its privileges there and install its
// filter, before the program begins. Everything is made before the fork, because the child may not
// allocate.
type spawning struct {
	path, dir     *byte
	argv, envv    []*byte
	files         [3]uintptr // its standard input, output and errors
	clone         uintptr    // namespaces that the child makes
	mounts        []mountCall
	group         *byte   // cgroup.procs of its v2 cgroup, below folder; nil: it has none
	groups2       uintptr // the descriptor of the hierarchy of v2
	apart         bool    // it sees its own cgroup only
	zero          [1]byte
	users         int // descriptor of the user namespace; -1: the shim's
	uid, gid      uintptr
	groups        []uint32
	filter        *unix.SockFprog // nil: every system call
	terminal      bool            // its input is its terminal
	traced        bool            // it stops before its first instruction
	report        uintptr         // takes the step and the error of a failure
	said          [2]uint32
	capVersion    unix.CapUserHeader
	kept          [2]unix.CapUserData // its capabilities within the namespace
	defaultAction [4]uint64
	noSignals     uint64
	openFiles     *unix.Rlimit // nil: as this process
	limits        []limit      // of the spec
	umask         int          // of the spec; -1: that of this process
}

// steps names the steps of a child, in order.
var steps = []string{"begin", "enter the users of its service", "give up capabilities",
	"take its groups", "take its group", "take its user", "set its capabilities",
	"lead a session", "take its terminal", "enter its folder", "take its files",
	"refuse system calls", "be traced", "exec", "enter its cgroup", "see its own cgroup only",
	"mount its /proc"}

// imageRoot are the capabilities of root of an image, within the user namespace of its service.
// With them a program changes its user and the owners of its own files, as official images do at
// their start. They hold for ids of the namespace alone. Its network and its mounts are not the
// namespace's, so capabilities for those would be of no use.
var imageRoot = []uintptr{unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID,
	unix.CAP_KILL, unix.CAP_SETGID, unix.CAP_SETUID, unix.CAP_SETPCAP}

// keep adds capabilities that the program has within the namespace. Each is below 32.
func (s *spawning) keep(capabilities []uintptr) {
	for _, c := range capabilities {
		s.kept[0].Permitted |= 1 << c
	}
	s.kept[0].Effective = s.kept[0].Permitted
}

// spawn starts a program in a user namespace from this thread, which has no_new_privs.
func spawn(s *spawning) (pid int, err error) {
	in, out, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer in.Close()
	s.report = out.Fd()
	s.capVersion.Version = unix.LINUX_CAPABILITY_VERSION_3
	pid, failed := s.fork()
	out.Close()
	if failed != 0 {
		return 0, failed
	}
	var said [8]byte
	if _, err := io.ReadFull(in, said[:]); errors.Is(err, io.EOF) {
		return pid, nil // exec closed the pipe
	}
	for {
		if _, err := unix.Wait4(pid, nil, 0, nil); err != unix.EINTR {
			break // or the shim has reaped it
		}
	}
	step, number := binary.NativeEndian.Uint32(said[:4]), binary.NativeEndian.Uint32(said[4:])
	failed = syscall.Errno(number)
	if steps[step%uint32(len(steps))] == "exec" || failed == 0 {
		return 0, failed
	}
	return 0, fmt.Errorf("%s: %w", steps[step], failed)
}

// fork runs spawnChild with no signal for this thread.
func (s *spawning) fork() (pid int, failed syscall.Errno) {
	syscall.ForkLock.Lock()
	defer syscall.ForkLock.Unlock()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	former := blockSignals()
	defer restoreSignals(&former)
	return spawnChild(s)
}

// blockSignals keeps every signal from this thread, so that no handler of Go's runs in a child.
func blockSignals() (former unix.Sigset_t) {
	var all unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &all, &former) // no argument of it can be wrong
	return former
}

func restoreSignals(former *unix.Sigset_t) {
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, former, nil)
}

//go:norace
//go:nosplit
func address1(b *[1]byte) uintptr { return uintptr(unsafe.Pointer(b)) }

// spawnChild forks, and in the child does everything up to exec. The child has this thread alone:
// it may use neither locks, memory of the heap, channels nor growing stacks, so it makes raw system
// calls only. It ends with the step and the error of a failure in the pipe.
//
//go:norace
//go:nosplit
func spawnChild(s *spawning) (pid int, failed syscall.Errno) {
	n, _, failed := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD)|s.clone, 0, 0, 0, 0, 0)
	if n != 0 || failed != 0 {
		return int(n), failed
	}
	if s.said[0], failed = s.enterGroup(); failed == 0 {
		s.said[0], failed = s.mount()
	}
	if failed == 0 {
		s.said[0], failed = s.child()
	}
	s.said[1] = uint32(failed)
	syscall.RawSyscall(unix.SYS_WRITE, s.report, uintptr(unsafe.Pointer(&s.said)), 8)
	for {
		syscall.RawSyscall(unix.SYS_EXIT_GROUP, 253, 0, 0)
	}
}

// child returns the step that failed, and its error.
//
//go:norace
//go:nosplit
func (s *spawning) child() (step uint32, failed syscall.Errno) {
	if step, failed = s.weaken(); failed != 0 {
		return step, failed
	}
	if _, _, failed = syscall.RawSyscall(unix.SYS_SETSID, 0, 0, 0); failed != 0 {
		return 7, failed
	}
	if s.terminal {
		_, _, failed = syscall.RawSyscall(unix.SYS_IOCTL, s.files[0], unix.TIOCSCTTY, 1)
		if failed != 0 {
			return 8, failed
		}
	}
	_, _, failed = syscall.RawSyscall(unix.SYS_CHDIR, uintptr(unsafe.Pointer(s.dir)), 0, 0)
	if failed != 0 {
		return 9, failed
	}
	for i := uintptr(0); i < 3; i++ {
		_, _, failed = syscall.RawSyscall(unix.SYS_DUP3, s.files[i], i, 0)
		if failed != 0 {
			return 10, failed
		}
	}
	for sig := uintptr(1); sig <= 64; sig++ { // Go's handlers do not exist in the program
		syscall.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&s.defaultAction)), 0, 8,
			0, 0)
	}
	syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK,
		uintptr(unsafe.Pointer(&s.noSignals)), 0, 8, 0, 0)
	if s.openFiles != nil {
		syscall.RawSyscall6(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_NOFILE,
			uintptr(unsafe.Pointer(s.openFiles)), 0, 0, 0)
	}
	if s.umask >= 0 {
		syscall.RawSyscall(unix.SYS_UMASK, uintptr(s.umask), 0, 0)
	}
	for i := range s.limits {
		syscall.RawSyscall6(unix.SYS_PRLIMIT64, 0, s.limits[i].which,
			uintptr(unsafe.Pointer(&s.limits[i].bound)), 0, 0, 0)
	}
	if s.traced {
		_, _, failed = syscall.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_TRACEME, 0, 0, 0, 0, 0)
		if failed != 0 {
			return 12, failed
		}
	}
	if s.filter != nil {
		_, _, failed = syscall.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0,
			uintptr(unsafe.Pointer(s.filter)))
		if failed != 0 {
			return 11, failed
		}
	}
	_, _, failed = syscall.RawSyscall(unix.SYS_EXECVE, uintptr(unsafe.Pointer(s.path)),
		uintptr(unsafe.Pointer(&s.argv[0])), uintptr(unsafe.Pointer(&s.envv[0])))
	return 13, failed
}

// enterGroup enters the v2 cgroup of the program, which may then be the root of all that it sees of cgroups.
//
//go:norace
//go:nosplit
func (s *spawning) enterGroup() (step uint32, failed syscall.Errno) {
	if s.group == nil {
		return 0, 0
	}
	fd, _, failed := syscall.RawSyscall6(unix.SYS_OPENAT, s.groups2,
		uintptr(unsafe.Pointer(s.group)), unix.O_WRONLY|unix.O_CLOEXEC, 0, 0, 0)
	if failed != 0 {
		return 14, failed
	}
	s.zero[0] = '0' // the writing process
	_, _, failed = syscall.RawSyscall(unix.SYS_WRITE, fd, address1(&s.zero), 1)
	if failed != 0 || !s.apart {
		return 14, failed
	}
	_, _, failed = syscall.RawSyscall(unix.SYS_UNSHARE, unix.CLONE_NEWCGROUP, 0, 0)
	return 15, failed
}

// mount makes the mounts of the program.
//
//go:norace
//go:nosplit
func (s *spawning) mount() (step uint32, failed syscall.Errno) {
	for i := range s.mounts {
		if failed = s.mounts[i].call(); failed != 0 {
			return 16, failed
		}
	}
	return 0, 0
}

// weaken enters the user namespace as its user, with the kept capabilities there. Root of the
// namespace would lose them at exec if the bounding set lacked them.
//
//go:norace
//go:nosplit
func (s *spawning) weaken() (step uint32, failed syscall.Errno) {
	if s.users >= 0 {
		_, _, failed = syscall.RawSyscall(unix.SYS_SETNS, uintptr(s.users), unix.CLONE_NEWUSER, 0)
		if failed != 0 {
			return 1, failed
		}
	}
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if c < 32 && s.kept[0].Permitted>>c&1 == 1 {
			continue
		}
		_, _, failed = syscall.RawSyscall6(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0, 0, 0, 0)
		if failed != 0 && failed != syscall.EINVAL { // an older kernel has fewer
			return 2, failed
		}
	}
	var first uintptr
	if len(s.groups) > 0 {
		first = uintptr(unsafe.Pointer(&s.groups[0]))
	}
	_, _, failed = syscall.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(s.groups)), first, 0)
	if failed != 0 {
		return 3, failed
	}
	if _, _, failed = syscall.RawSyscall(unix.SYS_SETRESGID, s.gid, s.gid, s.gid); failed != 0 {
		return 4, failed
	}
	if _, _, failed = syscall.RawSyscall(unix.SYS_SETRESUID, s.uid, s.uid, s.uid); failed != 0 {
		return 5, failed
	}
	_, _, failed = syscall.RawSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&s.capVersion)),
		uintptr(unsafe.Pointer(&s.kept)), 0)
	return 6, failed
}
