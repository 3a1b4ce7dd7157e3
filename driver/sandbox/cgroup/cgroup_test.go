package cgroup

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// open returns the machine's hierarchies, and a group in them that is removed after the test.
func open(t *testing.T, root string) (Hierarchies, *Group) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("control groups need root")
	}
	h, err := Open(root)
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("cgtest%d/%s", os.Getpid(), strings.ToLower(t.Name()))
	g, err := h.Make(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
		h.Prune(filepath.Dir(name))
	})
	return h, g.(*Group)
}

// v2Root mounts a hierarchy of v2. A hybrid machine has one, without controllers if v1 has them
// all.
func v2Root(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("control groups need root")
	}
	dir := t.TempDir()
	if err := unix.Mount("cgroup2", dir, "cgroup2", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestLimitsAreWhatTheKernelHolds(t *testing.T) {
	h, g := open(t, Root)
	if h.v2 {
		t.Skip("this machine's hierarchy is v2")
	}
	r := pando.Resources{CPUs: 0.25, MemoryBytes: 32 << 20, PIDs: 7}
	if err := g.Limit(r); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]int64{
		g.file("cpu", "cpu.cfs_quota_us", ""): 2_500, g.file("cpu", "cpu.cfs_period_us", ""): 10_000,
		g.file("memory", "memory.limit_in_bytes", ""): 32 << 20, g.file("pids", "pids.max", ""): 7,
	} {
		if got := number(file); got != want {
			t.Errorf("%s is %d, want %d", file, got, want)
		}
	}
	if err := g.Limit(pando.Resources{CPUs: 1e-9}); err != nil {
		t.Errorf("a tiny share is refused: %v", err)
	}
}

// enter starts a command inside a group, in the way of its hierarchy.
func enter(t *testing.T, root string, g *Group, argv ...string) *exec.Cmd {
	t.Helper()
	cmd, e := exec.Command(argv[0], argv[1:]...), g.Entry()
	if e.Folder != "" {
		dir, err := os.Open(root + e.Folder)
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	}
	done := make(chan error)
	go func() {
		done <- onThread(func() error {
			for _, tasks := range e.Tasks {
				if err := put(root+tasks, strconv.Itoa(unix.Gettid())); err != nil {
					return err
				}
			}
			return cmd.Start()
		})
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

// A process is cloned into its group. The process that starts it stays in its own group.
func TestEntryMovesTheProcessAlone(t *testing.T) {
	for name, root := range map[string]string{"v1": Root, "v2": v2Root(t)} {
		t.Run(name, func(t *testing.T) {
			h, g := open(t, root)
			if want := name == "v2"; h.v2 != want {
				t.Skip("this machine has one hierarchy of v2 at " + Root)
			}
			cmd := enter(t, root, g, "sleep", "60")
			if !g.Holds(cmd.Process.Pid) || g.Holds(os.Getpid()) || g.Holds(1) {
				t.Errorf("%s holds the process: %v, the test: %v, the first process: %v",
					name, g.Holds(cmd.Process.Pid), g.Holds(os.Getpid()), g.Holds(1))
			}
			for _, dir := range g.folders() {
				want, got := strconv.Itoa(cmd.Process.Pid), ""
				// The thread that started the process may take a moment to end.
				for deadline := time.Now().Add(time.Minute); got != want && time.Now().Before(deadline); {
					text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
					if err != nil {
						t.Fatal(err)
					}
					got = strings.TrimSpace(string(text))
				}
				if got != want {
					t.Errorf("%s holds %q, want only %s", dir, got, want)
				}
			}
		})
	}
}

func TestWantedControllerThatIsNotThereIsNamed(t *testing.T) {
	h, g := open(t, v2Root(t))
	text, _ := os.ReadFile(filepath.Join(h.root, "cgroup.controllers"))
	if strings.Contains(string(text), "memory") {
		t.Skip("v2 has the memory controller on this machine")
	}
	err := g.Limit(pando.Resources{MemoryBytes: 1 << 20})
	if !errors.Is(err, pando.ErrNotFound) || !strings.Contains(err.Error(), "memory") {
		t.Errorf("got %v, want it to name the controller", err)
	}
	if err := g.Limit(pando.Resources{}); err != nil {
		t.Errorf("no limit was wanted, but: %v", err)
	}
}

func TestHogIsKilledInItsOwnGroup(t *testing.T) {
	_, g := open(t, Root)
	if err := g.Limit(pando.Resources{MemoryBytes: 16 << 20}); err != nil {
		t.Fatal(err)
	}
	cmd := enter(t, Root, g, "python3", "-c",
		"b = bytearray(200 << 20)\nfor i in range(0, len(b), 4096): b[i] = 1")
	if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("it ended with %v, want it killed", err)
	}
	if !g.OOMKilled() {
		t.Error("the kernel's count of OOM kills is 0")
	}
}

func TestNoHierarchyIsNamed(t *testing.T) {
	if _, err := Open(t.TempDir()); !errors.Is(err, pando.ErrNotFound) {
		t.Errorf("an empty folder was taken for the machine's cgroups: %v", err)
	}
}

// onThread runs f on a thread that ends with f. The thread has joined the groups, so no other
// goroutine may run on it.
func onThread(f func() error) error {
	runtime.LockOSThread()
	if unix.Gettid() != unix.Getpid() {
		return f()
	}
	done := make(chan error)
	go func() { done <- onThread(f) }()
	err := <-done
	runtime.UnlockOSThread()
	return err
}

// A machine without the controller of processors refuses a choice of them, and nothing else.
func TestAChoiceOfProcessorsNeedsItsController(t *testing.T) {
	_, g := open(t, v2Root(t))
	err := g.Limit(pando.Resources{CPUSet: "0"})
	if !errors.Is(err, pando.ErrNotFound) && !errors.Is(err, pando.ErrInvalid) {
		if text, _ := os.ReadFile(filepath.Join(g.v2, "cpuset.cpus")); strings.TrimSpace(string(text)) != "0" {
			t.Errorf("%v, and the processors are %q", err, text)
		}
	}
	if err := g.Limit(pando.Resources{}); err != nil {
		t.Error(err)
	}
}
