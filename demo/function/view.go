package function

import (
	"fmt"
	"strings"
	"time"

	"pando.run/pando/demo/screen"
)

// Draw implements screen.View.
func (t *timeline) Draw(width, height int) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var b strings.Builder
	b.WriteString(screen.Head("Pando: network functions as a service", "policer → IDS", t.step, width))
	offered, active, p50, p99 := t.series()
	b.WriteString(screen.Strip("offered", screen.Blue, offered, "%8.1f Mbit/s", width))
	b.WriteString(screen.Strip("units", screen.Orange, active, "%8.0f", width))
	b.WriteString(screen.Strip("latency p50", screen.Dim, p50, "%8.1f ms", width))
	b.WriteString(screen.Strip("latency p99", screen.Dim, p99, "%8.1f ms", width))
	fmt.Fprintf(&b, "\npackets  %s\n\n", t.totals())
	for _, u := range t.units {
		colour := screen.Blue
		if u.State != "running" {
			colour = screen.Orange
		}
		line := fmt.Sprintf("%-12s %-8s process %-7d %6d flows %10d packets",
			u.Name, u.State, u.PID, u.Flows, u.processed())
		fmt.Fprintf(&b, "  %s●%s %s\n", colour, screen.Plain, screen.Cut(line, width-5))
	}
	b.WriteByte('\n')
	var told []string
	for _, e := range t.events {
		told = append(told, fmt.Sprintf("%9s  %-8s %-16s %s → %s", e.At, e.Who, e.What, e.Why, e.Outcome))
	}
	b.WriteString(screen.Tail(told, height-14-len(t.units), width))
	return b.String()
}

// totals describes the packets sent, received and billed up to the newest report of the generator.
// It leaves out later reports of the receiver and of the units. The caller holds the lock.
func (t *timeline) totals() string {
	var out, received, billed uint64
	if n := len(t.offered); n > 0 {
		newest := t.offered[n-1]
		out = newest.Packets
		now := t.begin.Add(time.Duration(newest.Seconds * 1e9))
		for _, r := range t.arrived {
			end := t.received.Add(time.Duration(r.AtMillis+1) * time.Millisecond)
			if newest.Last || !end.After(now) {
				received += r.Packets
			}
		}
		for _, s := range t.samples {
			if newest.Last || !s.at.After(now) {
				billed = s.billed
			}
		}
	}
	return fmt.Sprintf("sent %d  came out %d  billed ~%d", out, received, billed)
}

// series returns the values over time that are drawn as strips.
func (t *timeline) series() (offered, active, p50, p99 []float64) {
	for i := range t.offered {
		offered = append(offered, t.megabits(i))
	}
	for _, s := range t.samples {
		active = append(active, float64(s.accepting))
	}
	for _, r := range t.arrived {
		p50, p99 = append(p50, float64(r.LatencyNanos[0])/1e6), append(p99,
			float64(r.LatencyNanos[3])/1e6)
	}
	return offered, active, p50, p99
}

// megabits returns the offered load of one report in Mbit/s.
func (t *timeline) megabits(i int) float64 {
	var before sent
	if i > 0 {
		before = t.offered[i-1]
	}
	seconds := t.offered[i].Seconds - before.Seconds
	if seconds <= 0 {
		return 0
	}
	return float64(t.offered[i].Bytes-before.Bytes) * 8e-6 / seconds
}

// shown records the output of the plain lines so far.
type shown struct {
	step   string
	events int
	second int
}

// Lines implements screen.View. It returns each new step and event, and the load once per second.
func (t *timeline) Lines() (out []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.step != t.shown.step {
		t.shown.step = t.step
		out = append(out, "— "+t.step)
	}
	for _, e := range t.events[t.shown.events:] {
		out = append(out, fmt.Sprintf("  %9s  %-8s %-16s %s → %s", e.At, e.Who, e.What, e.Why, e.Outcome))
	}
	t.shown.events = len(t.events)
	n, m := len(t.offered), len(t.arrived)
	if n > 1 && m > 0 && int(t.offered[n-1].Seconds) > t.shown.second {
		t.shown.second = int(t.offered[n-1].Seconds)
		active := 0
		if k := len(t.samples); k > 0 {
			active = t.samples[k-1].accepting
		}
		r := t.arrived[m-1]
		out = append(out, fmt.Sprintf("%9.1f s  %5.1f Mbit/s  %d units busy  p50 %s p99 %s  packets %s",
			t.offered[n-1].Seconds, t.megabits(n-2), active,
			micros(r.LatencyNanos[0]), micros(r.LatencyNanos[3]), t.totals()))
	}
	return out
}

// micros formats nanoseconds for people.
func micros(ns uint64) string {
	d := time.Duration(ns)
	if d < time.Millisecond {
		return fmt.Sprintf("%d µs", d.Microseconds())
	}
	return fmt.Sprintf("%.1f ms", d.Seconds()*1e3)
}
