//go:build bench

// Package release deploys bad revisions of a service under load. Each has a canary, and the program
// reports the share of its bad answers. The bench counts the requests that fail or are late, from
// the deploy until the old revision serves alone again. Each round deploys every bad revision.
package release

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/bench/load"
	"pando.run/pando/bench/sheet"
	"pando.run/pando/lab/labtest"
)

const (
	rounds    = 5
	instances = 3
	rate      = 300.0       // requests per second, each with a connection of its own
	canary    = 10          // percent of new flows
	late      = time.Second // an answer after that is a bad one
	patience  = 5 * time.Second
	before    = 500 * time.Millisecond // of load, before the deploy
	longest   = 2 * time.Minute        // of one trial
)

// bad is one bad revision: its command and environment, and words of the reason that ends it.
type bad struct{ name, command, environment, reason string }

var kinds = []bad{
	{"exits at once", "[\"false\"]", "", "failed"},
	{"exits with its 20th request", "[./worker]", "LAST: \"20\", ", "failed"},
	{"is never ready", "[sleep, \"1000\"]", "", "failed"},
	{"fails 5 % of its requests", "[./worker]", "FAIL: \"0.05\", ", "bad_share"},
	{"is slow", "[./worker]", "SLEEP: \"1500\", ", "bad_share"},
}

func TestRelease(t *testing.T) {
	p := labtest.Up(t)
	load.Worker(t, p)
	web := p.Deploy(spec(bad{command: "[./worker]"}, 0))
	web.AwaitInstances(instances)
	dial := load.DialerOf(p, 64)
	out := sheet.New(t, ".")
	n, _ := sheet.Rounds(rounds, 0)
	for round := range n {
		for k := range kinds {
			measure(p, web, kinds[(k+round)%len(kinds)], out, round, dial)
		}
	}
	for _, k := range kinds {
		row(out, k, n)
	}
	out.Publish("Bad revisions under load: requests that are hurt until they are rolled back",
		"% of requests, or s", "--plot", "hurt")
}

// spec returns the spec of a revision. No two rounds have the same one.
func spec(b bad, round int) string {
	return fmt.Sprintf("name: web\ncommand: %s\n"+
		"environment: {%sREPORT: \"1\", LATE: \"%d\", ROUND: \"%d\"}\n"+
		"ports: [\"80:8080\"]\nhealth: {ready: tcp 8080, ready_within: 3s}\n"+
		"scale: {min: %d, max: %d}\nrollout: {canary: %d%%, soak: 20s, "+
		"gate: {metric: bad_share, above: 0.01}}\n",
		b.command, b.environment, late.Milliseconds(), round, instances, 2*instances, canary)
}

// measure deploys a bad revision under load, and notes the hurt requests and the time until the old
// revision serves alone.
func measure(
	p *labtest.Pando, web *labtest.Service, b bad, out *sheet.Sheet, round int, dial load.Dial,
) {
	p.Helper()
	serves := web.AwaitInstances(instances).Current
	end, all := make(chan struct{}), make(chan []load.Reply)
	begin := time.Now()
	go func() {
		all <- load.Load{Dial: dial, Address: web.VIP + ":80", Rate: load.Always(rate),
			Lasts: longest, Until: end, Patience: patience, Seed: uint64(round)}.Run()
	}()
	<-time.After(before)
	from := time.Since(begin)
	said := web.UpdateFails(7, spec(b, round+1))
	if !strings.Contains(said, b.reason) {
		p.Errorf("the deploy of a revision that %s does not name %q:\n%s", b.name, b.reason, said)
	}
	web.Await("the old revision alone", func(s pando.ServiceStatus) bool {
		return s.Current == serves && s.Target == serves && s.InRotation == instances &&
			len(s.Instances) == instances
	})
	to := time.Since(begin)
	close(end)
	requests, hurt, failed := 0, 0, 0
	for _, r := range <-all {
		if r.Due < from || r.Due > to {
			continue
		}
		requests++
		if !r.OK {
			failed++
		}
		if !r.OK || r.Took > late {
			hurt++
		}
	}
	out.Note(round, b.name+", hurt %", 100*float64(hurt)/float64(max(1, requests)))
	out.Note(round, b.name+", failed", float64(failed))
	out.Note(round, b.name+", requests", float64(requests))
	out.Note(round, b.name+", s", (to - from).Seconds())
}

// row states the hurt requests of the worst round against the share of the canary.
func row(out *sheet.Sheet, b bad, rounds int) {
	worst := out.Quantile(b.name+", hurt %", 1)
	out.Row(fmt.Sprintf("a revision that %s, at %.0f requests/s: requests that failed or took over "+
		"%s, worst round", b.name, rate, late), fmt.Sprintf("≤ %d %% (the canary's share)", canary), "",
		fmt.Sprintf("%.1f %% (p50 %.1f %% of %.0f); rolled back by itself in %d of %d rounds, %.1f s "+
			"p50", worst, out.Median(b.name+", hurt %"), out.Median(b.name+", requests"), rounds, rounds,
			out.Median(b.name+", s")), worst <= canary)
}
