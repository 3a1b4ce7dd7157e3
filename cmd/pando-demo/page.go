package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"pando.run/pando/cmd/pando-demo/load"
	"pando.run/pando/cmd/pando-demo/report"
)

// describe makes the page of a run and says how many of its requests failed.
func describe(c load.Config, schedule string, reports []load.Report) (page report.Page, failed int) {
	lines := map[string][]report.Point{}
	offered, answered, broken := 0, 0, 0
	for _, r := range reports {
		offered, answered, broken = offered+r.Offered, answered+r.Answered, broken+r.Broken
		for _, n := range r.Failed {
			failed += n
		}
		if r.Final { // its latencies are of the whole run, and its interval is not a whole one
			continue
		}
		at := float64(r.AtMillis) / 1e3
		add := func(name string, v float64) { lines[name] = append(lines[name], report.Point{Seconds: at, Value: v}) }
		add("offered", float64(r.Offered)/c.ReportEvery.Seconds())
		add("answered", float64(r.Answered)/c.ReportEvery.Seconds())
		if r.Answered > 0 {
			add("p50", float64(r.LatencyMicros[0])/1e3)
			add("p99", float64(r.LatencyMicros[1])/1e3)
		}
	}
	chart := func(title string, names ...string) {
		ch := report.Chart{Title: title}
		for _, n := range names {
			ch.Lines = append(ch.Lines, report.Line{Name: n, Points: lines[n]})
		}
		page.Charts = append(page.Charts, ch)
	}
	chart("Load, requests/s", "offered", "answered")
	chart("Latency from the due time, ms", "p50", "p99")
	page.Title = "Load on " + c.Address
	page.Checks = []report.Check{
		{Name: "every request is accounted for", Detail: fmt.Sprintf("%d offered = %d answered + %d failed", offered, answered, failed), Held: offered == answered+failed},
		{Name: "no request failed", Detail: fmt.Sprint(failed), Held: failed == 0},
		{Name: "no connection broken", Detail: fmt.Sprint(broken), Held: broken == 0},
	}
	page.Facts = []report.Fact{{Name: "schedule", Value: schedule}, {Name: "connections", Value: fmt.Sprint(c.Connections)},
		{Name: "share of new connections", Value: fmt.Sprint(c.FreshShare)}, {Name: "kernel", Value: kernel()},
		{Name: "processors", Value: fmt.Sprint(runtime.NumCPU())}, {Name: "Go", Value: runtime.Version()}}
	return page, failed
}

func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return err.Error()
	}
	return strings.TrimRight(string(u.Release[:]), "\x00")
}

func write(name string, page report.Page) error {
	f, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("make the report: %w", err)
	}
	return errors.Join(report.Write(f, page), f.Close())
}
