package website

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"time"

	"pando.run/pando/demo/load"
	"pando.run/pando/demo/report"
)

// Offer is the load generator. It prints one JSON line per interval. The last line has the
// latencies of the whole run. Offer returns an error if a request failed.
func Offer(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("pando-demo load", flag.ContinueOnError)
	var c load.Config
	flags.StringVar(&c.Address, "address", "", "`host:port` to load")
	flags.StringVar(&c.Path, "path", "/", "path to ask for")
	flags.IntVar(&c.Connections, "connections", 64, "the most connections open at once, 1 to 10000")
	flags.Float64Var(&c.FreshShare, "fresh", 0.1, "share of requests on a new connection, 0 to 1")
	flags.DurationVar(&c.Timeout, "timeout", 10*time.Second, "of one request")
	flags.DurationVar(&c.ReportEvery, "every", 100*time.Millisecond, "interval of the reports")
	schedule := flags.String("schedule", "", "RATE,DURATION:RATE,… in requests per second")
	html := flags.String("html", "", "`file` for a report with plots")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var err error
	if c.Schedule, err = load.ParseSchedule(*schedule); err != nil {
		return err
	}
	if c.Address == "" || c.Connections < 1 || c.Connections > 10000 || c.ReportEvery <= 0 ||
		c.Timeout <= 0 {
		return fmt.Errorf("want --address, --connections from 1 to 10000 and positive durations")
	}
	if *html != "" {
		if err := report.Possible(*html); err != nil {
			return err
		}
	}
	out := json.NewEncoder(os.Stdout)
	var t totals
	var unprinted error
	load.Run(ctx, c, func(r load.Report) {
		t.add(r)
		if err := out.Encode(r); err != nil {
			unprinted = fmt.Errorf("print a report: %w", err)
		}
	})
	if unprinted != nil {
		return unprinted
	}
	if *html != "" {
		if err := report.Save(*html, loadPage(c, *schedule, t)); err != nil {
			return err
		}
	}
	if t.failed > 0 {
		return fmt.Errorf("%d requests failed: the reports above have the reasons", t.failed)
	}
	return nil
}
