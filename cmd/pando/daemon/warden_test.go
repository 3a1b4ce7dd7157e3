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
