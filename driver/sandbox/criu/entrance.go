package criu

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/thread"
)

// entrance is the way of a CRIU into a sandbox.
type entrance struct {
	inside   int
	uid, gid int
	groups   string
	entry    pando.CgroupEntry
}

// namespaces are those that CRIU enters, the mounts last: until then the others have their paths.
var namespaces = []struct {
	name string
	flag int
}{
	{"net", unix.CLONE_NEWNET}, {"ipc", unix.CLONE_NEWIPC}, {"uts", unix.CLONE_NEWUTS},
	{"pid", unix.CLONE_NEWPID}, {"mnt", unix.CLONE_NEWNS},
}

// start starts a program by its descriptor on a thread that has entered the sandbox. The thread
// ends afterwards: no other goroutine may run on it.
func (e entrance) start(argv []string, files []*os.File) (child int, err error) {
	thread.Run(func() {
		var attr *syscall.SysProcAttr
		if attr, err = e.enter(); err == nil {
			fds := make([]uintptr, len(files))
			for n, f := range files {
				fds[n] = f.Fd()
			}
			child, err = syscall.ForkExec(fd(int(fds[loaderFD])), argv, &syscall.ProcAttr{Dir: "/",
				Env:   []string{"PATH=/usr/sbin:/usr/bin", "XDG_RUNTIME_DIR=" + fd(logFD)},
				Files: fds, Sys: attr})
			if attr.UseCgroupFD {
				unix.Close(attr.CgroupFD)
			}
		}
	})
	if err != nil {
		return 0, fmt.Errorf("start CRIU in the sandbox: %w", err)
	}
	return child, nil
}

// enter takes this thread into the cgroups and the namespaces of the sandbox.
func (e entrance) enter() (*syscall.SysProcAttr, error) {
	attr := &syscall.SysProcAttr{Setsid: true}
	for _, file := range e.entry.Tasks {
		if err := os.WriteFile(e.groups+file, []byte("0"), 0); err != nil {
			return nil, fmt.Errorf("join the cgroup %s: %w", filepath.Dir(file), err)
		}
	}
	if e.entry.Folder != "" {
		group, err := unix.Open(e.groups+e.entry.Folder, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("open the cgroup %s: %w", e.entry.Folder, err)
		}
		attr.UseCgroupFD, attr.CgroupFD = true, group
	}
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return nil, err
	}
	var fds []int
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	for _, ns := range namespaces {
		path := "/proc/" + strconv.Itoa(e.inside) + "/ns/" + ns.name
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("open %s: %w", path, err)
		}
		fds = append(fds, fd)
	}
	for n, ns := range namespaces {
		if err := unix.Setns(fds[n], ns.flag); err != nil {
			return nil, fmt.Errorf("enter the namespace %s: %w", ns.name, err)
		}
	}
	if e.uid == 0 {
		return attr, nil
	}
	return attr, e.become()
}

// become takes the user of the program, with all capabilities of root. The kernel shows the limits
// of a process to its own user or to CAP_SYS_RESOURCE, which a container or a guest may lack.
func (e entrance) become() error {
	if err := unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("keep capabilities: %w", err)
	}
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&h, &sets[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	// The calls of package syscall would change every thread.
	u, g := uintptr(e.uid), uintptr(e.gid)
	if _, _, failed := syscall.RawSyscall(unix.SYS_SETRESGID, g, g, g); failed != 0 {
		return fmt.Errorf("take the group of the program: %w", failed)
	}
	if _, _, failed := syscall.RawSyscall(unix.SYS_SETRESUID, u, u, u); failed != 0 {
		return fmt.Errorf("take the user of the program: %w", failed)
	}
	for n := range sets {
		sets[n].Effective, sets[n].Inheritable = sets[n].Permitted, sets[n].Permitted
	}
	if err := unix.Capset(&h, &sets[0]); err != nil {
		return fmt.Errorf("keep capabilities: %w", err)
	}
	for c := range 64 {
		if sets[c/32].Permitted>>(c%32)&1 == 0 {
			continue
		}
		err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, uintptr(c), 0, 0)
		if err != nil {
			return fmt.Errorf("keep capability %d: %w", c, err)
		}
	}
	return nil
}
