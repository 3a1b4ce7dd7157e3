package function

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"pando.run/pando"
	"pando.run/pando/cmd/pando/cli"
	"pando.run/pando/driver/clock"
)

// watchFlag is the hidden flag of the process that watches a detached group.
const watchFlag = "watch"

// watchedFile is a file in the folder of a group that is started again. `pando fn rm` removes it
// first (function/unit/src/command/places.rs).
const watchedFile = "watched"

// watch runs a group as a child process, and starts it again when a signal ends it, for example for
// want of memory. The units end with their group, so the next one has new units and no states of
// flows. A group that ends by itself, or that never served, is not started again.
func (u unit) watch(ctx context.Context, folder string, group func() *exec.Cmd) error {
	watched := filepath.Join(folder, watchedFile)
	if err := os.WriteFile(watched, nil, 0o644); err != nil {
		return asRoot(err)
	}
	output := &firstWrite{to: u.Stdout}
	wait := time.Duration(0)
	for {
		since := time.Now()
		child := group()
		child.Stdout, child.Stderr = output, u.Stderr
		err := runThrough(child)
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.Exited() {
			return cli.Code(exit.ExitCode())
		}
		if _, gone := os.Stat(watched); err == nil || !output.done || gone != nil {
			return err
		}
		wait = cli.RestartWait(wait, time.Since(since))
		fmt.Fprintf(u.Stderr, "the group ended (%v) and is started again in %v; "+
			"the states of its flows are lost\n", err, wait)
		if err := pando.Sleep(ctx, clock.Clock{}, wait); err != nil {
			return nil // a signal ends the watch
		}
	}
}

// firstWrite passes on the first write only, the line of a group that serves. The reader of that
// line is gone later.
type firstWrite struct {
	to   interface{ Write([]byte) (int, error) }
	done bool
}

// Write implements io.Writer.
func (w *firstWrite) Write(text []byte) (int, error) {
	if w.done {
		return len(text), nil
	}
	w.done = true
	return w.to.Write(text)
}
