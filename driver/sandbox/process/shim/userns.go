package shim

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/wire"
)

// makeUsers makes a user namespace with the ids of a service, and returns a descriptor that keeps it. A
// child makes it, because the kernel lets no process with several threads enter another one.
func makeUsers(u wire.Users) (int, error) {
	in, out, err := os.Pipe()
	if err != nil {
		return -1, err
	}
	defer in.Close()
	defer out.Close()
	pid, failed := cloneWaiting(in.Fd(), out.Fd())
	if failed != 0 {
		return -1, fmt.Errorf("%w: this host makes no user namespace (%w); raise the sysctl "+
			"user.max_user_namespaces, or set `userns_mode: host` in the spec", pando.ErrUnsupported,
			failed)
	}
	defer func() {
		out.Close() // the child ends
		for {
			// The shim reaps every child of the sandbox, perhaps this one.
			if _, err := unix.Wait4(pid, nil, 0, nil); err != unix.EINTR {
				return
			}
		}
	}()
	of := "/proc/" + strconv.Itoa(pid)
	for _, file := range []string{"uid_map", "gid_map"} {
		if err := os.WriteFile(of+"/"+file, u.Maps(), 0); err != nil {
			return -1, fmt.Errorf("map the users of a service: %w", err)
		}
	}
	fd, err := unix.Open(of+"/ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("keep the users of a service: %w", err)
	}
	return fd, nil
}

// cloneWaiting makes a child in a user namespace of its own. The child ends when the other end of
// the pipe in is closed.
func cloneWaiting(in, out uintptr) (pid int, failed syscall.Errno) {
	syscall.ForkLock.Lock()
	defer syscall.ForkLock.Unlock()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	former := blockSignals()
	defer restoreSignals(&former)
	var b [1]byte
	return waitingChild(in, out, &b)
}

// waitingChild is between clone and exit in the child. See spawnChild for the rules.
//
//go:norace
//go:nosplit
func waitingChild(in, out uintptr, b *[1]byte) (pid int, failed syscall.Errno) {
	n, _, failed := syscall.RawSyscall6(unix.SYS_CLONE,
		uintptr(unix.SIGCHLD)|unix.CLONE_NEWUSER, 0, 0, 0, 0, 0)
	if n != 0 || failed != 0 {
		return int(n), failed
	}
	syscall.RawSyscall(unix.SYS_CLOSE, out, 0, 0)
	syscall.RawSyscall(unix.SYS_READ, in, address1(b), 1)
	for {
		syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
}

// mapUsers makes the files of a detached mount those of the program's users: id 0 on the disk is
// root inside, and the host's ids stay as they are on the disk. what ends the message for a file system
// that cannot.
func mapUsers(tree, users int, what string) error {
	err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{
		Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(users),
	})
	if errors.Is(err, unix.EINVAL) {
		err = fmt.Errorf("%w: the file system with %s", pando.ErrUnsupported, what)
	}
	return err
}
