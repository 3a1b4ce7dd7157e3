package features

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Bounds of a comfortable machine.
const (
	spaceBytesMin = 1 << 30
	fsyncs        = 21
	fsyncMax      = 20 * time.Millisecond
)

// existing returns the nearest existing folder on the way to path.
func existing(path string) string {
	for path != "/" {
		if st, err := os.Stat(path); err == nil && st.IsDir() {
			return path
		}
		path = filepath.Dir(path)
	}
	return path
}

func trySpace(c Config) (string, error) {
	dir := existing(c.DataDir)
	f, err := os.CreateTemp(dir, ".pando-doctor-")
	if err != nil {
		return "", fmt.Errorf("write there: %w", err)
	}
	if err := os.Remove(f.Name()); err != nil {
		return "", err
	}
	f.Close()
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return "", fmt.Errorf("%s: %w", dir, err)
	}
	free := int64(s.Bavail) * s.Bsize
	found := fmt.Sprintf("%.1f GiB free for %s", float64(free)/(1<<30), c.DataDir)
	if free < spaceBytesMin {
		return "", fmt.Errorf("only %s", found)
	}
	return found, nil
}

// tryFsync measures the median time of a durable write.
func tryFsync(c Config) (string, error) {
	f, err := os.CreateTemp(existing(c.DataDir), ".pando-doctor-")
	if err != nil {
		return "", fmt.Errorf("write there: %w", err)
	}
	defer f.Close()
	if err := os.Remove(f.Name()); err != nil {
		return "", err
	}
	took := make([]time.Duration, fsyncs)
	for i := range took {
		begin := c.Clock.Now()
		if _, err := f.WriteAt(make([]byte, 4096), int64(i)*4096); err != nil {
			return "", err
		}
		if err := f.Sync(); err != nil {
			return "", err
		}
		took[i] = c.Clock.Now().Sub(begin)
	}
	slices.Sort(took)
	median := took[fsyncs/2]
	found := fmt.Sprintf("%s for 4 KiB (median of %d, slowest %s)",
		median.Round(10*time.Microsecond), fsyncs, took[fsyncs-1].Round(10*time.Microsecond))
	if median > fsyncMax {
		return "", fmt.Errorf("%s", found)
	}
	return found, nil
}

// tryCgroups makes a group under every controller that limits, and removes it.
func tryCgroups(c Config) (string, error) {
	if text, err := os.ReadFile(filepath.Join(c.CgroupRoot, "cgroup.controllers")); err == nil {
		for _, name := range []string{"cpu", "memory", "pids"} {
			if !slices.Contains(strings.Fields(string(text)), name) {
				return "", fmt.Errorf("cgroup2 has no %s controller", name)
			}
		}
		return "v2 with cpu, memory, pids", tryGroup(c.CgroupRoot)
	}
	for _, name := range []string{"cpu", "memory", "pids"} {
		at := filepath.Join(c.CgroupRoot, name)
		if _, err := os.Stat(filepath.Join(at, "tasks")); err != nil {
			return "", fmt.Errorf("the %s controller is not mounted at %s", name, at)
		}
		if err := tryGroup(at); err != nil {
			return "", err
		}
	}
	return "v1 with cpu, memory, pids", nil
}

func tryGroup(at string) error {
	dir, err := os.MkdirTemp(at, "doctor-")
	if err != nil {
		return fmt.Errorf("make a control group: %w", err)
	}
	return unix.Rmdir(dir)
}

func tryClock(Config) (string, error) {
	var t unix.Timex
	if _, err := unix.Adjtimex(&t); err != nil {
		return "", fmt.Errorf("adjtimex: %w", err)
	}
	if t.Status&unix.STA_UNSYNC != 0 {
		return "", fmt.Errorf("nothing keeps it in time")
	}
	return fmt.Sprintf("kept in time to %s", time.Duration(t.Maxerror)*time.Microsecond), nil
}

// The handshake of userfaultfd (linux/userfaultfd.h). The kernel grants only features that it has.
const (
	uffdAPI         = 0xaa
	uffdioAPI       = 0xc018aa3f
	uffdFeatureMove = 1 << 16
	uffdFeatureSig  = 1 << 7
)

// handshake opens userfaultfd with some features and closes it again.
func handshake(features uint64) error {
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0)
	if errno != 0 {
		return fmt.Errorf("userfaultfd: %w", errno)
	}
	defer unix.Close(int(fd))
	api := struct{ api, features, ioctls uint64 }{uffdAPI, features, 0}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, uffdioAPI,
		uintptr(unsafe.Pointer(&api))); errno != 0 {
		return fmt.Errorf("the kernel does not grant it: %w", errno)
	}
	return nil
}

func tryUserfaultfd(Config) (string, error) {
	return "faults come as SIGBUS", handshake(uffdFeatureSig)
}

func tryMove(Config) (string, error) { return "granted", handshake(uffdFeatureMove) }
