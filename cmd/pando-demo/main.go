// Command pando-demo offers a schedule of HTTP load and prints one JSON line per interval, the last with the figures
// of the whole run. It never decides anything for the service that it loads.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"pando.run/pando/cmd/pando-demo/load"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "pando-demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 || args[0] != "load" {
		return fmt.Errorf("want a role: pando-demo load --address VIP:80 --schedule 50,5s:400,10s:400,5s:50")
	}
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
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	var err error
	if c.Schedule, err = load.ParseSchedule(*schedule); err != nil {
		return err
	}
	if c.Address == "" || c.Connections < 1 || c.Connections > 10000 || c.ReportEvery <= 0 || c.Timeout <= 0 {
		return fmt.Errorf("want --address, --connections from 1 to 10000 and positive durations")
	}
	return offer(ctx, c, *schedule, *html)
}

// offer prints the reports, writes the page if one is wanted, and fails if any request did.
func offer(ctx context.Context, c load.Config, schedule, html string) error {
	out := json.NewEncoder(os.Stdout)
	var reports []load.Report
	var unprinted error
	load.Run(ctx, c, func(r load.Report) {
		reports = append(reports, r)
		if err := out.Encode(r); err != nil {
			unprinted = fmt.Errorf("print a report: %w", err)
		}
	})
	if unprinted != nil {
		return unprinted
	}
	page, failed := describe(c, schedule, reports)
	if html != "" {
		if err := write(html, page); err != nil {
			return err
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d requests failed: the reports above say why", failed)
	}
	return nil
}
