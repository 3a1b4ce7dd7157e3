package website

import (
	"fmt"

	"pando.run/pando/demo/load"
	"pando.run/pando/demo/report"
)

// loadPage returns the report of a run of the load generator.
func loadPage(c load.Config, schedule string, t totals) report.Page {
	rates, latency := t.charts()
	return report.Page{
		Title: "Load on " + c.Address, Charts: []report.Chart{rates, latency}, Checks: t.checks("", nil),
		Facts: manifest(c, schedule),
	}
}

// manifest lists the parameters of a run.
func manifest(c load.Config, schedule string) []report.Fact {
	return append([]report.Fact{
		{Name: "schedule", Value: schedule}, {Name: "connections", Value: fmt.Sprint(c.Connections)},
		{Name: "share of new connections", Value: fmt.Sprint(c.FreshShare)},
	}, report.Machine()...)
}
