package website

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"pando.run/pando"
	"pando.run/pando/demo/report"
)

// result is the outcome of a run.
type result struct{ audit audit }

// conclude writes the report, prints its figures and returns an error if a check failed.
func (r result) conclude(p play, t *timeline) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return report.Conclude(os.Stdout, p.report, r.page(p, t))
}

// page returns the report of a run. The caller holds the timeline's lock.
func (r result) page(p play, t *timeline) report.Page {
	rates, latency := t.totals.charts()
	peak, end := 0, time.Duration(0)
	lines := map[string][]report.Point{}
	for _, c := range t.crowds {
		at := c.at.Seconds()
		lines["in rotation"] = append(lines["in rotation"],
			report.Point{Seconds: at, Value: float64(c.serving)})
		lines["starting or leaving"] = append(lines["starting or leaving"],
			report.Point{Seconds: at, Value: float64(c.starting + c.leaving)})
		peak, end = max(peak, c.serving), max(end, c.at)
	}
	last := t.crowds[len(t.crowds)-1].serving
	page := report.Page{
		Title: "A website that scales itself",
		Lead:  r.lead(p, t),
		Charts: []report.Chart{rates, {Title: "Instances", Step: true, Lines: []report.Line{
			{Name: "in rotation", Area: true, Points: lines["in rotation"]},
			{Name: "starting or leaving", Points: lines["starting or leaving"]}}}, latency},
		Lives: report.Lives{Title: "Lives of the instances", Starting: "starting",
			Serving: "in rotation", Leaving: "draining and merging", Rows: t.lives(end)},
		Checks: slices.Concat(r.audit.checks(t.totals.answered, t.totals.failed),
			t.totals.checks(string(t.dead), t.victims())),
		Facts: manifest(p.load, p.schedule),
	}
	if t.dead != "" {
		page.Marks = append(page.Marks, report.Mark{Seconds: t.died.Sub(t.begin).Seconds(),
			Name: string(t.dead) + " dies"})
	}
	page.Checks = append(page.Checks, r.spread(p, t)...)
	page.Checks = append(page.Checks, report.Check{Name: "the website grew with its load and shrank " +
		"after it", Detail: fmt.Sprintf("1 → %d → %d instances", peak, last),
		Held: peak > 1 && last == 1})
	page.Figures = []report.Fact{{Name: "requests answered", Value: fmt.Sprint(t.totals.answered)},
		{Name: "instances", Value: fmt.Sprintf("1 → %d → %d", peak, last)}}
	if copies := t.copies(); len(copies) > 0 {
		page.Figures = append(page.Figures, report.Fact{Name: "from a copy's ask to its first flow, p50",
			Value: report.Took(copies[len(copies)/2])})
	}
	if l := t.totals.last.LatencyMicros; t.totals.last.Final {
		page.Figures = append(page.Figures, report.Fact{
			Name: "latency p50 / p99", Value: report.Took(micros(l[0])) + " / " + report.Took(micros(l[1])),
		})
	}
	for _, b := range t.told() {
		page.Decisions = append(page.Decisions, t.row(b))
	}
	page.Facts = append(page.Facts,
		report.Fact{Name: "answers by instance", Value: shares(r.audit.served)})
	return page
}

// lead introduces the report. The caller holds the timeline's lock.
func (r result) lead(p play, t *timeline) string {
	text := "One instance is deployed. Each instance measures its own load over 100 ms, asks its " +
		"host for a copy of itself when there is too much of it, and leaves when it is not needed. "
	if p.hosts > 1 {
		text += fmt.Sprintf("The copies spread over %d hosts. ", p.hosts)
	}
	text += "The kernel steers new connections; no proxy is on the way. "
	if t.dead != "" {
		text += fmt.Sprintf("After %.0f s the power of %s fails, and the others take over. ",
			t.died.Sub(t.begin).Seconds(), t.dead)
	}
	return text + "The state is merged, and every answered request must be in it."
}

// spread checks that the website ran on every host. The caller holds the timeline's lock.
func (r result) spread(p play, t *timeline) []report.Check {
	if p.kill == 0 {
		return nil
	}
	on := map[pando.HostName]int{}
	for _, h := range t.hosts {
		on[h]++
	}
	var parts []string
	for _, h := range slices.Sorted(maps.Keys(on)) {
		parts = append(parts, fmt.Sprintf("%d on %s", on[h], h))
	}
	return []report.Check{{Name: "the website ran on every host", Detail: strings.Join(parts, ", "),
		Held: len(on) == p.hosts}}
}

// shares lists the number of requests that each instance served, highest first.
func shares(served map[string]int) string {
	names := []string{}
	for n := range served {
		names = append(names, n)
	}
	slices.SortFunc(names, func(a, b string) int { return served[b] - served[a] })
	for i, n := range names {
		names[i] = fmt.Sprintf("%s %d", suffix(n), served[n])
	}
	return strings.Join(names, ", ")
}

// suffix returns the part of an instance's name that distinguishes it from other instances of the
// service.
func suffix(name string) string { return name[strings.LastIndexByte(name, '-')+1:] }

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
