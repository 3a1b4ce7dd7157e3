package daemon

import (
	"context"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/driver/clock"
)

// asking lists the steps that end a daemon: SIGTERM, SIGQUIT (which logs the stacks), SIGKILL. Each
// step has a time limit. Killing a daemon loses no acknowledged write, because it equals a crash.
var asking = []request{
	{syscall.SIGTERM, 10 * time.Second},
	{syscall.SIGQUIT, 2 * time.Second},
	{syscall.SIGKILL, 2 * time.Second},
}

// askAgain is how long a command asks the agent of its host again. An agent starts anew when the
// server of its host was taken out, and joins the cluster through another one.
const askAgain = 30 * time.Second

// askStep is the time between two questions to an agent that starts anew.
const askStep = 200 * time.Millisecond

// request is a signal and the time that it has to work.
type request struct {
	signal syscall.Signal
	within time.Duration
}

// stopDaemon is endDaemon for a caller to whom force makes no difference.
func (m machine) stopDaemon(
	ctx context.Context, p place, role string, requests []request, logsGo bool,
) error {
	_, err := endDaemon(ctx, m, p, role, requests, logsGo)
	return err
}

// endDaemon ends a daemon. If that took force, it prints a warning and returns true. logsGo means
// that the folder of the daemon's log is about to be deleted.
func endDaemon(
	ctx context.Context, m machine, p place, role string, requests []request, logsGo bool,
) (forced bool, err error) {
	if has, err := p.unitEnds(ctx, role); has && err != nil {
		return forced, fmt.Errorf("stop the %s: %w", role, err)
	}
	pid, alive := daemon(p, role)
	defer pando.Waiting(cli.Telling(ctx, m.Stderr), clock.Clock{},
		fmt.Sprintf("the end of the %s (process %d)", role, pid))()
	for n, r := range requests {
		if !alive {
			return forced, nil
		}
		if err := syscall.Kill(pid, r.signal); err != nil && err != syscall.ESRCH {
			return forced, fmt.Errorf("stop the %s: %w", role, err)
		}
		if alive = !ends(ctx, p, role, r.within); ctx.Err() != nil {
			return forced, fmt.Errorf("stop the %s (pid %d): %w", role, pid, ctx.Err())
		}
		if n > 0 && !alive {
			forced = true
			fmt.Fprintf(m.Stderr, "the %s (pid %d) did not end within %v and was killed, "+
				"which loses no acknowledged write; its stacks are in %s\n",
				role, pid, requests[0].within, keptLog(p, role, logsGo))
		}
	}
	if alive {
		return forced, fmt.Errorf("the %s (pid %d) cannot be killed: it waits for the kernel; "+
			"/proc/%[2]d/stack shows where", role, pid)
	}
	return forced, nil
}

// ends waits until a daemon has ended, and reports whether it has.
func ends(ctx context.Context, p place, role string, within time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		if _, alive := daemon(p, role); !alive {
			return true
		}
		if pando.Sleep(ctx, clock.Clock{}, 10*time.Millisecond) != nil {
			return false
		}
	}
}

// keptLog returns a readable path of a daemon's log. If the log's folder is about to be deleted, it
// copies the log first.
func keptLog(p place, role string, logsGo bool) string {
	path := daemonLog(p, role)
	if !logsGo {
		return path
	}
	from, err := os.Open(path)
	if err != nil {
		return path + ", which cannot be read: " + err.Error()
	}
	defer from.Close()
	to, err := os.CreateTemp("", "pando-"+role+"-*.log")
	if err != nil {
		return path + ", which cannot be kept: " + err.Error()
	}
	defer to.Close()
	if _, err := io.Copy(to, from); err != nil {
		return to.Name() + ", not all of it: " + err.Error()
	}
	return to.Name()
}
