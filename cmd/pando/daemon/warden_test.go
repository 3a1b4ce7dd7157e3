package daemon

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"
)

func TestRestartWaits(t *testing.T) {
	for _, c := range []struct {
		what               string
		last, lived, wants time.Duration
	}{
		{"the first end", 0, time.Hour, restartWaitMin},
		{"the first end, at once", 0, 0, restartWaitMin},
		{"a second end at once", restartWaitMin, 0, 2 * restartWaitMin},
		{"just not steady", 4 * time.Second, steadyAfter - 1, 8 * time.Second},
		{"steady meanwhile", 16 * time.Second, steadyAfter, restartWaitMin},
		{"the bound", 20 * time.Second, 0, restartWaitMax},
		{"at the bound", restartWaitMax, 0, restartWaitMax},
	} {
		if got := restartWait(c.last, c.lived); got != c.wants {
			t.Errorf("%s: %v, want %v", c.what, got, c.wants)
		}
	}
	// A daemon that never starts costs at most one attempt in 30 s, and is never given up.
	var all, wait time.Duration
	for range 20 {
		wait = restartWait(wait, 0)
		all += wait
	}
	if all > 10*time.Minute || wait != restartWaitMax {
		t.Errorf("20 attempts took %v, the last wait is %v", all, wait)
	}
}

func sleeper(t *testing.T) *exec.Cmd {
	t.Helper()
	c := exec.Command("sleep", "600")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	return c
}

func TestTheEndOfAProcessIsSeen(t *testing.T) {
	c := sleeper(t)
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := ended(short, c.Process.Pid); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a living process: %v", err)
	}
	seen := make(chan error, 1)
	go func() { seen <- ended(t.Context(), c.Process.Pid) }()
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-seen:
		if err != nil {
			t.Errorf("a killed process: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the end of a process is not seen")
	}
	// It was reaped: no zombie is left.
	if _, err := os.Stat("/proc/" + strconv.Itoa(c.Process.Pid)); err == nil {
		t.Error("the killed child is a zombie")
	}
	if err := ended(t.Context(), c.Process.Pid); err != nil {
		t.Errorf("a process that is gone: %v", err)
	}
}
