package website

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

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
		Lead: "One instance is deployed. Each instance measures its own load over 100 ms, asks its " +
			"host for a copy of itself when there is too much of it, " +
			"and leaves when it is not needed. The kernel steers new connections; no proxy is on the way. " +
			"The state of every instance is merged.",
		Charts: []report.Chart{rates, {Title: "Instances", Step: true, Lines: []report.Line{
			{Name: "in rotation", Area: true, Points: lines["in rotation"]},
			{Name: "starting or leaving", Points: lines["starting or leaving"]}}}, latency},
		Lives: report.Lives{Title: "Lives of the instances", Starting: "starting",
			Serving: "in rotation", Leaving: "draining and merging", Rows: t.lives(end)},
		Checks: slices.Concat(r.audit.checks(t.totals.answered), t.totals.checks()),
		Facts:  manifest(p.load, p.schedule),
	}
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
