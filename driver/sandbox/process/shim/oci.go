package shim

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/logfile"
	"pando.run/pando/driver/sandbox/process/wire"
	"pando.run/pando/driver/sandbox/thread"
)

// A runtime of the Open Container Initiative can start the program of an image in place of the shim.
// It makes mounts, takes capabilities and filters calls by config.json. The network, the processes,
// the cgroups and the users are those of the sandbox. So the shim reaps, signals and logs the program
// as any other.

// runRuntime runs one command of the runtime in the cgroups of the instance, and returns its error.
func (s *shim) runRuntime(p wire.Program, files [3]*os.File, words ...string) error {
	_ = os.Remove(ociLog)
	argv := append([]string{p.Runtime, "--root", ociState, "--cgroup-manager", "disabled",
		"--log", ociLog}, words...)
	pidfd := -1
	attr := &syscall.SysProcAttr{PidFD: &pidfd}
	failed := make(chan error, 1)
	var pid int
	thread.Go(func() {
		err := enter(p.Cgroup, s.groups)
		if err == nil {
			err = forker{entry: p.Cgroup, apart: true}.enterApart()
		}
		if err == nil && p.Cgroup.Folder != "" {
			var group *os.File
			if group, err = openBelow(s.groups, local(p.Cgroup.Folder), unix.O_RDONLY); err == nil {
				defer group.Close()
				attr.UseCgroupFD, attr.CgroupFD = true, int(group.Fd())
			}
		}
		if err == nil {
			pid, err = syscall.ForkExec(p.Runtime, argv, &syscall.ProcAttr{Dir: "/",
				Env:   []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"},
				Files: []uintptr{files[0].Fd(), files[1].Fd(), files[2].Fd()}, Sys: attr})
		}
		failed <- err
	})
	if err := <-failed; err != nil {
		return fmt.Errorf("run %s %s: %w", p.Runtime, words[0], err)
	}
	return s.outcomeOf(p, words[0], pid, pidfd)
}

// container returns the name of the newest container. Checks of configs have the earlier ones.
func (s *shim) container() string { return "container-" + strconv.Itoa(s.containers) }

// furnishForRuntime completes the files of an image below the root that they are stacked at. The shim stays
// in its own view, where it has the runtime.
func (s *shim) furnishForRuntime(p wire.Program, root int, volumes []copied) error {
	s.top = path.Join(stage, "root")
	err := s.supply(root, p.IDOutside(0))
	if err == nil {
		err = mountVolumes(volumes, p, s.top)
	}
	if err == nil {
		err = workingFolder(root, p)
	}
	if err == nil {
		err = nameMachine(p, s.top)
	}
	err = errors.Join(err, s.keepSecrets(p), s.keepConfigs(p))
	// crun of Debian 12 refuses a machine with both versions of cgroups, which it does not use here.
	_ = unix.Unmount("/sys/fs/cgroup/unified", unix.MNT_DETACH)
	// The kernel mounts a /proc in a user namespace only beside one that hides nothing. This view is
	// the shim's alone.
	for _, at := range filesBelow("/proc", append(slices.Clone(procHidden), procReadOnly...)) {
		_ = unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	}
	return errors.Join(err, os.MkdirAll(ociState, 0o700))
}

// launchByRuntime starts the program, or a check before it, as a container, and else a command in the
// container of the program. The caller holds the lock, so no end of a process is lost before its
// waiter exists.
func (s *shim) launchByRuntime(do forking) (pid int, ended <-chan unix.WaitStatus, err error) {
	p := do.program
	if do.gate != nil {
		return 0, nil, fmt.Errorf("%w: a runtime loads no program ahead", pando.ErrUnsupported)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, nil, err
	}
	defer null.Close()
	files := [3]*os.File{cmp.Or(do.stdin, null), do.stdio, cmp.Or(do.stderr, do.stdio)}
	pidFile := path.Join(ociFolder, "pid")
	_ = os.Remove(pidFile)
	words, first := []string{"exec", "--detach"}, s.program == nil
	if first {
		s.containers++
		bundle := path.Join(ociFolder, s.container())
		err = os.Mkdir(bundle, 0o700)
		if err == nil {
			err = writeJSON(path.Join(bundle, "config.json"), s.runtimeConfig(p))
		}
		words = []string{"create", "--bundle", bundle}
	} else {
		process := path.Join(ociFolder, "process.json")
		err = writeJSON(process, s.runtimeProcess(p))
		words = append(words, "--process", process)
	}
	if err != nil {
		return 0, nil, err
	}
	words = append(words, "--pid-file", pidFile, s.container())
	if err := s.runRuntime(p, files, words...); err != nil {
		return 0, nil, err
	}
	text, err := os.ReadFile(pidFile)
	if err == nil {
		pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
	}
	if err != nil {
		return 0, nil, fmt.Errorf("%s %s: %w", path.Base(p.Runtime), words[0], err)
	}
	ended = awaitEnd(s, pid)
	if first {
		if err := s.runRuntime(p, files, "start", s.container()); err != nil {
			return 0, nil, errors.Join(err, unix.Kill(pid, unix.SIGKILL))
		}
	}
	return pid, ended, nil
}

// outcomeOf waits for a command of the runtime. The reaper of the sandbox may take its exit code
// first: its log tells then.
func (s *shim) outcomeOf(p wire.Program, verb string, pid, pidfd int) error {
	what := path.Base(p.Runtime) + " " + verb
	late := false
	if pidfd >= 0 {
		defer unix.Close(pidfd)
		n := 0
		err := unix.EINTR
		for err == unix.EINTR {
			var e error
			n, e = unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}},
				int(runtimeWaitMax.Milliseconds()))
			err, _ = e.(unix.Errno)
		}
		if late = n == 0; late {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
	var status unix.WaitStatus
	for {
		if _, err := unix.Wait4(pid, &status, 0, nil); err != unix.EINTR {
			break
		}
	}
	text, _ := os.ReadFile(ociLog)
	said := strings.Join(strings.Fields(string(text)), " ")
	switch {
	case late:
		return fmt.Errorf("%w: %s did not end within %s", pando.ErrNotReady, what, runtimeWaitMax)
	case said != "" || status != 0:
		return fmt.Errorf("%s: %s", what, logfile.Evidence(said))
	}
	return nil
}

// The folder of a shim with its bundles, and the files there.
const (
	ociFolder = "/run/oci"
	ociState  = ociFolder + "/state"
	ociLog    = ociFolder + "/log"
)

// runtimeWaitMax is the time for one command of the runtime.
const runtimeWaitMax = 20 * time.Second

// workingFolder makes the working directory of a program if its image has none.
func workingFolder(root int, p wire.Program) error {
	dir := strings.TrimPrefix(path.Clean("/"+p.Dir), "/")
	if dir == "" {
		return nil
	}
	fd, err := unix.Openat2(root, dir, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
	if err == nil {
		return unix.Close(fd)
	}
	if fd, err = folderIn(root, dir, p.IDOutside(0)); err != nil {
		return fmt.Errorf("make the working directory %s in the image: %w", p.Dir, err)
	}
	defer unix.Close(fd)
	return unix.Fchownat(fd, "", int(p.IDOutside(p.UID)), int(p.IDOutside(p.GID)), unix.AT_EMPTY_PATH)
}
