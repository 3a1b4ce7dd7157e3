package units

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// backOff returns how long a group waits after the given number of consecutive failed starts.
func backOff(failures uint) time.Duration {
	return min(time.Second<<min(failures-1, 8), 30*time.Second)
}

// failed handles a unit that could not be started. The group ends if it has not served yet. Later
// the other units keep serving, and the start is repeated.
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

// unsteered ends a unit that cannot be added to the steering. The group ends if it has not served
// yet.
func (g *Group) unsteered(e event, err error) error {
	if !g.served {
		return err
	}
	fmt.Fprintf(os.Stderr, "unit %s ends, because it cannot be steered to: %v\n", e.process.name, err)
	_ = e.process.command.Process.Kill() // its end arrives as an event, and another unit replaces it
	return nil
}

// unswept reports that silent flows could not be deleted. The next sweep tries again.
func (g *Group) unswept(err error) error {
	if !g.served {
		return err
	}
	fmt.Fprintln(os.Stderr, err)
	return nil
}
