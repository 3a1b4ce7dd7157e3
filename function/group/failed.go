package group

import (
	"fmt"
	"strings"
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
	g.failures++
	g.counts.Failed++
	wait := backOff(g.failures)
	g.notBefore = g.Clock.Now().Add(wait)
	g.lastFailed = fmt.Sprintf("%v; the next try is in %v", e.err, wait)
	fmt.Fprintln(g.Log, g.lastFailed)
	return nil
}

// unsteered ends a unit that cannot be added to the steering. The group ends if it has not served
// yet.
func (g *Group) unsteered(e event, err error) error {
	if !g.served {
		return err
	}
	fmt.Fprintf(g.Log, "unit %s ends, because it cannot be steered to: %v\n", e.process.Name(), err)
	e.process.Kill() // its end arrives as an event, and another unit replaces it
	return nil
}

// unscanned reports that the flow table could not be read or cleaned. The next scan tries again.
func (g *Group) unscanned(err error) error {
	if !g.served {
		return err
	}
	fmt.Fprintln(g.Log, err)
	return nil
}

// reportDeath logs the end of a unit that was not asked to end, with its last lines.
func (g *Group) reportDeath(e event) {
	end := e.end.Exit
	if e.end.Cause != "" {
		end += ": " + e.end.Cause
	}
	words := ""
	if len(e.end.Lines) > 0 {
		words = ": the last words\n  " + strings.Join(e.end.Lines, "\n  ")
	}
	fmt.Fprintf(g.Log, "unit %s ended (%s); another takes its place%s\n", e.process.Name(), end, words)
}
