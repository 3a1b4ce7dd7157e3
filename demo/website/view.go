package website

import (
	"fmt"
	"strings"
	"time"

	"pando.run/pando/demo/screen"
)

// start begins the clock of the run.
func (t *timeline) start(vip string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.begin, t.vip = time.Now(), vip
}

// Draw implements screen.View.
func (t *timeline) Draw(width, height int) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var b strings.Builder
	b.WriteString(screen.Head("Pando: a website that scales itself", t.vip, t.step, width))
	offered, instances, p99 := t.series()
	b.WriteString(screen.Strip("offered", screen.Blue, offered, "%7.0f /s", width))
	b.WriteString(screen.Strip("instances", screen.Orange, instances, "%7.0f", width))
	b.WriteString(screen.Strip("p99", screen.Dim, p99, "%7.1f ms", width))
	fmt.Fprintf(&b, "\nanswered %d   failed %d   broken connections %d\n\n", t.totals.answered,
		t.totals.failed, t.totals.broken)
	for _, i := range t.now.Instances {
		colour := screen.Blue
		if !i.Phase.TakesFlows() {
			colour = screen.Orange
		}
		fmt.Fprintf(&b, "  %s●%s %s\n", colour, screen.Plain,
			screen.Cut(fmt.Sprintf("%-16s %-18s %-12s %s", i.ID, i.Endpoint, i.Phase, i.Reason), width-5))
	}
	b.WriteByte('\n')
	var told []string
	for _, v := range t.told() {
		d := t.row(v)
		told = append(told,
			fmt.Sprintf("%9s  %-14s %-26s %s → %s", d.At, d.Who, d.What, d.Why, d.Outcome))
	}
	b.WriteString(screen.Tail(told, height-12-len(t.now.Instances), width))
	return b.String()
}

// series returns the values over time that are drawn as strips.
func (t *timeline) series() (offered, instances, p99 []float64) {
	for i, r := range t.totals.reports {
		v, _ := t.totals.rate(i)
		offered = append(offered, v)
		p99 = append(p99, float64(r.LatencyMicros[1])/1e3)
	}
	for _, c := range t.crowds {
		instances = append(instances, float64(c.serving))
	}
	return offered, instances, p99
}

// shown records the output of the plain lines so far.
type shown struct {
	step   string
	told   map[string]bool
	second int
}

// Lines implements screen.View. It returns each new step and decision, and the load once per
// second.
func (t *timeline) Lines() (out []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.step != t.shown.step {
		t.shown.step = t.step
		out = append(out, "— "+t.step)
	}
	for _, b := range t.told() {
		key := born(b).String() + string(verb(b))
		if !t.shown.told[key] {
			t.shown.told[key] = true
			d := t.row(b)
			out = append(out,
				fmt.Sprintf("  %9s  %-18s %-28s %s → %s", d.At, d.Who, d.What, d.Why, d.Outcome))
		}
	}
	n := len(t.totals.reports)
	if n > 0 && len(t.crowds) > 0 && int(t.totals.reports[n-1].AtMillis/1000) > t.shown.second {
		t.shown.second = int(t.totals.reports[n-1].AtMillis / 1000)
		out = append(out, t.summary())
	}
	return out
}

// summary returns the newest state in one line. The caller holds the lock.
func (t *timeline) summary() string {
	n := len(t.totals.reports) - 1
	r, c := t.totals.reports[n], t.crowds[len(t.crowds)-1]
	offered, answered := t.totals.rate(n)
	return fmt.Sprintf("%8.1f s  offered %5.0f/s  answered %5.0f/s  p50 %6.2f ms  p99 %7.2f ms  "+
		"instances %d in rotation, %d starting, %d leaving",
		float64(r.AtMillis)/1e3, offered, answered, float64(r.LatencyMicros[0])/1e3,
		float64(r.LatencyMicros[1])/1e3, c.serving, c.starting, c.leaving)
}
