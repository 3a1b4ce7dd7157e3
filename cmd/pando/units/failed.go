package units

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// backOff is for how long a group waits behind so many starts in a row that failed.
func backOff(failures uint) time.Duration {
	return min(time.Second<<min(failures-1, 8), 30*time.Second)
}

// failed notes that a unit could not be started. The first units must start, or the group does not; later the others
// serve on, and the start is tried again.
func (g *Group) failed(e event) error {
	if !g.served {
		return e.err
	}
	g.units[e.id] = unit{}
	_ = os.RemoveAll(filepath.Join(g.RunDir, g.nameOf(e.id)))
	g.failures++
	g.counts.Failed++
	wait := backOff(g.failures)
	g.notBefore = time.Now().Add(wait)
	g.lastFailed = fmt.Sprintf("%v; the next try is in %v", e.err, wait)
	fmt.Fprintln(os.Stderr, g.lastFailed)
	return nil
}

// unsteered ends a unit to which nothing can be steered. Before the group serves, the group ends with it.
func (g *Group) unsteered(e event, err error) error {
	if !g.served {
		return err
	}
	fmt.Fprintf(os.Stderr, "unit %s ends, because it cannot be steered to: %v\n", e.process.name, err)
	_ = e.process.command.Process.Kill() // its end comes as an event, and another takes its place
	return nil
}

// unswept notes that silent flows could not be forgotten: the next sweep tries again.
func (g *Group) unswept(err error) error {
	if !g.served {
		return err
	}
	fmt.Fprintln(os.Stderr, err)
	return nil
}
