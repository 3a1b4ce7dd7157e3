package cli

import (
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
		if got := RestartWait(c.last, c.lived); got != c.wants {
			t.Errorf("%s: %v, want %v", c.what, got, c.wants)
		}
	}
	// A process that never starts costs at most one attempt in 30 s, and is never given up.
	var all, wait time.Duration
	for range 20 {
		wait = RestartWait(wait, 0)
		all += wait
	}
	if all > 10*time.Minute || wait != restartWaitMax {
		t.Errorf("20 attempts took %v, the last wait is %v", all, wait)
	}
}
