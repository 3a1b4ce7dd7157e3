package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// start begins the clock of the run.
func (t *timeline) start(vip string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.begin, t.vip = time.Now(), vip
}

func terminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// show shows the run as it happens, until the function that it returns is called. quit is called when the viewer wants
// to end the run.
func show(ctx context.Context, quit func(), t *timeline, plain bool) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var viewing sync.WaitGroup
	viewing.Go(func() {
		if plain {
			lines(ctx, t, os.Stdout)
		} else {
			live(ctx, quit, t)
		}
	})
	return func() {
		cancel()
		viewing.Wait()
	}
}

// lines prints each new step and decision, and the load once per second.
func lines(ctx context.Context, t *timeline, w io.Writer) {
	step, told, second := "", map[string]bool{}, 0
	for pando.Sleep(ctx, pando.WallClock{}, look) == nil {
		t.mu.Lock()
		if t.step != step {
			step = t.step
			fmt.Fprintf(w, "— %s\n", step)
		}
		for _, b := range t.told() {
			key := born(b).String() + string(verb(b))
			if !told[key] {
				told[key] = true
				d := t.row(b)
				fmt.Fprintf(w, "  %9s  %-18s %-28s %s → %s\n", d.At, d.Who, d.What, d.Why, d.Outcome)
			}
		}
		if n := len(t.totals.reports); n > 0 && len(t.crowds) > 0 && int(t.totals.reports[n-1].AtMillis/1000) > second {
			second = int(t.totals.reports[n-1].AtMillis / 1000)
			fmt.Fprintln(w, t.summary())
		}
		t.mu.Unlock()
	}
}

// summary is the newest state in one line. The caller holds the lock.
func (t *timeline) summary() string {
	n := len(t.totals.reports) - 1
	r, c := t.totals.reports[n], t.crowds[len(t.crowds)-1]
	offered, answered := t.totals.rate(n)
	return fmt.Sprintf("%8.1f s  offered %5.0f/s  answered %5.0f/s  p50 %6.2f ms  p99 %7.2f ms  instances %d in rotation, %d starting, %d leaving",
		float64(r.AtMillis)/1e3, offered, answered, float64(r.LatencyMicros[0])/1e3, float64(r.LatencyMicros[1])/1e3, c.serving, c.starting, c.leaving)
}
