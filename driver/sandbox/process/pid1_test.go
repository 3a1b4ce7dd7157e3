package process

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/wire"
)

// The program of an image is PID 1, as images with an init of their own need it. It sees its own
// processes and its own limits. Commands beside it see the same.
func TestTheProgramOfAnImageIsPID1(t *testing.T) {
	d := newImageDriver(t, 1)
	b := run(t, d, func(s *pando.Spec) {
		withImage(s)
		s.Resources.MemoryBytes = 64 << 20
	}, "/bin/sh", "-c", `echo pid $$; echo mounts $(grep -c " /proc proc" /proc/mounts)
		echo ready >/proc/1/fd/1; exec sleep 60`)
	awaitLast(t, b, "ready")
	if out := strings.Join(b.LastLines(9), "\n"); !strings.Contains(out, "pid 1\nmounts 1\n") {
		t.Errorf("it says %q", out)
	}
	for script, want := range map[string]string{
		"cat /proc/1/cmdline":                                      "sleep\x0060\x00",
		"echo to its log >/proc/1/fd/1":                            "",
		"cat /sys/fs/cgroup/memory/memory.limit_in_bytes":          "67108864",
		"grep -v :/$ /proc/self/cgroup; ls /sys/fs/cgroup/*/pando": "",
		"echo 1 >/proc/sys/kernel/panic || echo refused":           "refused",
		"cat /proc/timer_list":                                     "",
		"set -- /proc/[0-9]*; echo $#":                             "3", // the program, two sh
		"kill 1; echo $?":                                          "0", // no handler: it has no effect
	} {
		if got := inside(t, b, "("+script+") 2>/dev/null"); got != want {
			t.Errorf("%s: %q, want %q", script, got, want)
		}
	}
	awaitLast(t, b, "to its log")
}

// In a v2 hierarchy the program of an image enters its cgroup by itself, and sees no other.
func TestTheProgramOfAnImageSeesItsOwnCgroupOfV2(t *testing.T) {
	root := mountCgroup2(t)
	d := newImageDriverIn(t, 1, root)
	b := run(t, d, withImage, "/bin/sleep", "60")
	if got := inside(t, b, "grep ^0: /proc/self/cgroup"); got != "0::/" {
		t.Errorf("a command sees the path %q", got)
	}
	if got := inside(t, b, "cat /sys/fs/cgroup/cgroup.procs"); !strings.HasPrefix(got, "1\n") {
		t.Errorf("in its cgroup are the processes %q", got)
	}
	all, err := os.ReadFile(filepath.Join(root, d.cgroupName(b.(*sandbox).slot.Number), "cgroup.procs"))
	if err != nil || len(strings.Fields(string(all))) != 1 {
		t.Errorf("the host sees %q in the cgroup (%v), want the program alone", all, err)
	}
}

// With init the program keeps the default actions of signals, and orphans are reaped.
// The group that a program sees is its own, and no program lifts its own limits.
func TestRootOfAnImageChangesNoLimitOfItsGroup(t *testing.T) {
	d := newImageDriver(t, 0)
	b := run(t, d, func(s *pando.Spec) { withImage(s); s.User = "0" }, "/bin/sh", "-c",
		`n=0; for f in /sys/fs/cgroup/* /sys/fs/cgroup/*/* /proc/sys/kernel/core_pattern /proc/sys/kernel/pid_max
		do [ -f $f ] || continue; n=$((n+1)); (echo 1 >$f) 2>/dev/null && echo wrote $f; done
		echo found $n; kill -9 1; echo alive`)
	exited(t, b)
	out := strings.Join(b.LastLines(40), "\n")
	found := regexp.MustCompile(`found ([0-9]+)`).FindStringSubmatch(out)
	if strings.Contains(out, "wrote") || !strings.Contains(out, "alive") || found == nil || len(found[1]) < 2 {
		t.Errorf("it says:\n%s", out)
	}
}

func TestWithInitTheProgramHasTheDefaultSignals(t *testing.T) {
	d := newImageDriver(t, 1)
	b := run(t, d, func(s *pando.Spec) {
		withImage(s)
		s.Init, s.StopSeconds = true, 60
	}, "/bin/sh", "-c", "(sleep 0 &); echo pid $$; echo ready; exec sleep 60")
	awaitLast(t, b, "ready")
	if out := strings.Join(b.LastLines(9), "\n"); strings.Contains(out, "pid 1\n") {
		t.Errorf("it says %q", out)
	}
	if err := b.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if e := exited(t, b); e.Signal != "SIGTERM" {
		t.Errorf("it ended with %+v", e)
	}
}

// PID 1 has no default actions: a program without a handler gets the grace and then SIGKILL.
func TestAProgramWithoutAHandlerIsKilledAfterItsGrace(t *testing.T) {
	d := newImageDriver(t, 1)
	b := run(t, d, withImage, "/bin/sleep", "60")
	at := time.Now()
	if err := b.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if e := exited(t, b); e.Signal != "SIGKILL" || time.Since(at) < 300*time.Millisecond {
		t.Errorf("it ended with %+v after %s", e, time.Since(at))
	}
}

// A prepared program is PID 1 too. Pausing stops it, and the end of the shim ends it.
func TestAPreparedPID1IsPausedAndEndsWithItsShim(t *testing.T) {
	d := newImageDriver(t, 1)
	for deadline := time.Now().Add(patience); d.pool.empty(); {
		if time.Now().After(deadline) {
			t.Fatal("no sandbox is ready")
		}
	}
	spec := pando.Spec{Name: "web", Command: []string{"/bin/sleep", "60"}}
	withImage(&spec)
	spec = spec.WithDefaults()
	of := pando.SandboxSpec{Spec: spec,
		Instance: pando.Instance{ID: "web-1", Service: spec.Key(), Role: pando.RoleFirst}}
	if err := d.Prepare(t.Context(), of); err != nil {
		t.Fatal(err)
	}
	b, err := d.Start(t.Context(), of)
	if err != nil {
		t.Fatal(err)
	}
	pids, err := b.(*sandbox).slot.cgroup.Processes()
	shim := b.(*sandbox).slot.PID // its thread that traced the program may not have ended
	pids = slices.DeleteFunc(pids, func(pid int) bool { return pid == shim })
	if err != nil || len(pids) != 1 {
		t.Fatalf("it has the processes %v (%v)", pids, err)
	}
	status := func() string {
		text, _ := os.ReadFile("/proc/" + strconv.Itoa(pids[0]) + "/stat")
		if f := wire.SplitStat(string(text)); len(f) > 0 {
			return f[0]
		}
		return "gone"
	}
	awaitStatus := func(want ...string) {
		t.Helper()
		for deadline := time.Now().Add(patience); ; {
			got := status()
			for _, w := range want {
				if got == w {
					return
				}
			}
			if time.Now().After(deadline) {
				t.Fatalf("its state is %s, want one of %v", got, want)
			}
		}
	}
	if err := b.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitStatus("T")
	if err := b.Resume(context.Background()); err != nil {
		t.Fatal(err)
	}
	awaitStatus("S")
	if err := unix.Kill(shim, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	awaitStatus("gone", "Z")
}
