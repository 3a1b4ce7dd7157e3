package process

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/wire"
)

// A program that held the control socket could command its own shim, which is root.
func TestProgramInheritsNothingButItsStdio(t *testing.T) {
	b := run(t, newDriver(t, 0), nil, "sleep", "60")
	code, out, err := b.Exec(t.Context(),
		[]string{"sh", "-c", "for f in 3 4 5 6 7 8 9; do readlink /proc/$$/fd/$f; done; true"})
	if err != nil || code != 0 {
		t.Fatal(code, err)
	}
	if strings.Contains(string(out), "socket:") {
		t.Fatalf("the program holds sockets of its shim:\n%s", out)
	}
}

func TestStopOfAnExitedProgramIsNoError(t *testing.T) {
	b := run(t, newDriver(t, 0), nil, "true")
	exited(t, b)
	if err := b.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Stop also ends a child of the program that runs in its own session.
func TestStopLeavesNoGrandchild(t *testing.T) {
	b := run(t, newDriver(t, 0), nil, "sh", "-c", "setsid sleep 300 >/dev/null 2>&1 & exec sleep 60")
	if err := b.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(fmt.Sprintf("/proc/%d/root/proc/[0-9]*", b.(*sandbox).slot.PID))
	if err != nil || len(left) != 1 {
		t.Fatalf("processes of the sandbox: %v (%v), want the shim alone", left, err)
	}
}

func TestStopReachesAPausedProgram(t *testing.T) {
	b := run(t, newDriver(t, 0), func(s *pando.Spec) { s.StopSeconds = 5 }, "sleep", "60")
	if err := b.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := b.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if e := exited(t, b); e.Signal != "SIGTERM" {
		t.Fatalf("ended by %q, want the stop signal", e.Signal)
	}
}

func TestHangingCommandBlocksNothing(t *testing.T) {
	b := run(t, newDriver(t, 0), nil, "sleep", "60")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, _, err := b.Exec(ctx, []string{"sleep", "60"}); err == nil {
		t.Fatal("a command that hangs has to end with its context")
	}
	if err := b.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestCommandMayPrintMoreThanIsKept(t *testing.T) {
	b := run(t, newDriver(t, 0), nil, "sleep", "60")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	code, out, err := b.Exec(ctx, []string{"sh", "-c", "head -c 300000 /dev/zero; exit 7"})
	if err != nil || code != 7 || len(out) != wire.OutputBytesMax {
		t.Fatalf("code %d, %d bytes, %v", code, len(out), err)
	}
}

func TestRemoveReturnsWithNoProcessLeft(t *testing.T) {
	b := run(t, newDriver(t, 0), nil, "sleep", "60")
	pid := b.(*sandbox).slot.PID
	if err := b.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if state := wire.SplitStat(string(stat)); len(state) > 0 && state[0] != "Z" {
		t.Fatalf("the shim is in state %s", state[0])
	}
}

// The tree is read-only even for the host's root; the working directory and /tmp stay writable.
func TestHostsFilesAreReadOnly(t *testing.T) {
	dir := t.TempDir()
	b := run(t, newDriver(t, 0), func(s *pando.Spec) {
		s.User, s.WorkingDir, s.UsernsMode = "0", dir, pando.UsernsHost
	}, "sleep", "60")
	script := "touch /etc/pt-x 2>/dev/null && echo etc; touch /sys/fs/cgroup/pt-x 2>/dev/null && " +
		"echo cgroup; touch here /tmp/here /dev/shm/here || echo own"
	_, out, err := b.Exec(t.Context(), []string{"sh", "-c", script})
	if err != nil || len(out) != 0 {
		t.Fatalf("%q, %v", out, err)
	}
	if _, err := os.Stat(dir + "/here"); err != nil {
		t.Fatal(err)
	}
}

// A command past its deadline ends with everything that it started in its group; the program stays.
func TestDeadlineEndsTheWholeCommand(t *testing.T) {
	b := run(t, newDriver(t, 0), nil, "sleep", "60")
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, _, err := b.Exec(ctx,
		[]string{"sh", "-c", "sleep 300 & sleep 300 & sleep 300"}); err == nil {
		t.Fatal("it came to an end")
	}
	awaitUsage(t, b, func(u pando.Usage) bool { return u.PIDs == 1 })
}

func TestCommandHasTheProgramsRightsAndEnvironment(t *testing.T) {
	b := run(t, newDriver(t, 0), func(s *pando.Spec) {
		s.User, s.Environment = "nobody", map[string]string{"WORD": "said"}
	}, "sleep", "60")
	got := inside(t, b,
		"echo $(id -un) $WORD $PANDO_INSTANCE $(sed -n 's/CapEff:\t//p' /proc/self/status)")
	if got != "nobody said web-1 0000000000000000" {
		t.Errorf("got %q", got)
	}
}

func TestCommandThatIsNotThereIsNamed(t *testing.T) {
	b := run(t, newDriver(t, 0), nil, "sleep", "60")
	if _, _, err := b.Exec(t.Context(), []string{"no-such-check"}); err == nil ||
		!strings.Contains(err.Error(), "no-such-check") {
		t.Errorf("got %v", err)
	}
}
