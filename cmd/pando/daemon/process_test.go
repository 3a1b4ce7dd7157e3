package daemon

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

// restless is the variable with the number of times that this program still calls exec, as the
// server does at its start.
const restless = "DAEMON_TEST_RESTLESS"

// execAgain calls exec from another thread than the first one. After the last time it waits for the
// end of its input.
func execAgain(left int) {
	if left == 0 {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	runtime.LockOSThread()
	done := make(chan error)
	go func() {
		_ = os.Setenv(restless, strconv.Itoa(left-1))
		done <- syscall.Exec("/proc/self/exe", os.Args, os.Environ())
	}()
	fmt.Fprintln(os.Stderr, <-done)
	os.Exit(1)
}

// TestADaemonLivesDuringExec looks at a process while it calls exec: `pando up` reports the end of
// a server that it has just started.
func TestADaemonLivesDuringExec(t *testing.T) {
	p := place{folders: folders{Run: t.TempDir()}}
	c := exec.Command("/proc/self/exe", "server")
	c.Env = append(os.Environ(), restless+"=30")
	c.Stderr = os.Stderr
	input, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if err := writePid(p, "server", c.Process.Pid); err != nil {
		t.Fatal(err)
	}
	var looks, dead atomic.Int64
	var over atomic.Bool
	var lookers sync.WaitGroup
	for range 2 {
		lookers.Go(func() {
			for !over.Load() {
				_, alive := daemon(p, "server")
				looks.Add(1)
				if !alive && !over.Load() {
					dead.Add(1)
				}
			}
		})
	}
	for last := []byte(restless + "=0\x00"); ; runtime.Gosched() {
		environment, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", c.Process.Pid))
		if bytes.Contains(environment, last) {
			break
		}
	}
	over.Store(true)
	lookers.Wait()
	input.Close()
	if err := c.Wait(); err != nil {
		t.Fatal(err)
	}
	if dead.Load() > 0 {
		t.Errorf("%d of %d looks found a living daemon dead", dead.Load(), looks.Load())
	}
	if _, alive := daemon(p, "server"); alive {
		t.Error("the daemon has ended, and counts as alive")
	}
}
