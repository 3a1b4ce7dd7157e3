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

// loadPage is the report of the load generator alone.
func loadPage(c load.Config, schedule string, t totals) report.Page {
	rates, latency := t.charts()
	return report.Page{
		Title: "Load on " + c.Address, Charts: []report.Chart{rates, latency}, Checks: t.checks(), Facts: manifest(c, schedule),
	}
}

// manifest says how a run was made.
func manifest(c load.Config, schedule string) []report.Fact {
	return []report.Fact{
		{Name: "schedule", Value: schedule}, {Name: "connections", Value: fmt.Sprint(c.Connections)},
		{Name: "share of new connections", Value: fmt.Sprint(c.FreshShare)}, {Name: "kernel", Value: kernel()},
		{Name: "processors", Value: fmt.Sprint(runtime.NumCPU())}, {Name: "Go", Value: runtime.Version()},
	}
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
