//go:build bench

// Package skewed measures how evenly four instances are used when 80 % of the requests are small
// and 20 % cost ten times as much. A connection has ten requests of one kind, as a session of HAVEN
// has one file. Every way gets the same connections at the same moments. Each round measures every
// way, and each way has instances of its own.
package skewed

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/bench/load"
	"pando.run/pando/bench/sheet"
	"pando.run/pando/lab/labtest"
)

const (
	rounds    = 5
	lasts     = 9 * time.Second
	instances = 4
	cpus      = 0.25 // limit of an instance
	share     = 0.6  // of the limits of all instances, in use
	requests  = 10   // of a connection
	small     = 1.0  // milliseconds of a request
	large     = 10.0
	smalls    = 0.8 // share of the requests
	patience  = 10 * time.Second
)

// way is one way to instances of its own.
type way struct {
	name, address string
	s             *labtest.Service
}

const score = "Pando by score"

func TestSkewed(t *testing.T) {
	p := labtest.Up(t)
	load.Worker(t, p)
	var ways []way
	own := func(name string, by pando.BalanceBy) way {
		s := deploy(p, by, len(ways))
		w := way{name, s.VIP + ":80", s}
		ways = append(ways, w)
		return w
	}
	own(score, pando.ByScore)
	own("Pando by turns", pando.ByRoundRobin)
	s := own("HAProxy leastconn", pando.ByHash).s
	ways[2].address = load.HAProxy(p, s, 8000, "balance leastconn")
	s = own("nftables", pando.ByHash).s
	ways[3].address = load.Nftables(p, s, 8002)
	out := sheet.New(t, ".")
	dial := load.Dialer(p)
	all, lasts := sheet.Rounds(rounds, lasts)
	for round := range all {
		for n := range ways {
			w := ways[(n+round)%len(ways)]
			uneven, p99, failed := measure(p, w, dial, lasts, uint64(round))
			out.Note(round, w.name, uneven)
			out.Keep(w.name+", p99", p99)
			out.Keep(w.name+", failed", float64(failed))
		}
	}
	rows(out, ways)
	out.Publish("80 % small and 20 % large requests: how evenly four instances work",
		"processor of the busiest over the mean")
}

func deploy(p *labtest.Pando, by pando.BalanceBy, n int) *labtest.Service {
	p.Helper()
	s := p.Deploy(fmt.Sprintf("name: web-%d\ncommand: [./worker]\nenvironment: {WORK: \"%g\"}\n"+
		"ports: [\"80:8080\"]\nhealth: {ready: tcp 8080}\nscale: {min: %d, max: %d}\n"+
		"resources: {cpus: %g}\nbalance: {by: %s}\n", n, small, instances, instances, cpus, by))
	s.AwaitInstances(instances)
	return s
}

// measure applies the load and returns the processor time of the busiest instance over the mean,
// and the 99th percentile of the requests in milliseconds.
func measure(
	p *labtest.Pando, w way, dial load.Dial, lasts time.Duration, seed uint64,
) (uneven, p99 float64, failed int) {
	p.Helper()
	mean := requests * (smalls*small + (1-smalls)*large) / 1000 // seconds of a connection
	before := load.Use(p, w.s)
	all := load.Load{Dial: dial, Address: w.address, Lasts: lasts, Patience: patience, Seed: seed,
		Rate: load.Always(share * cpus * instances / mean), Visit: visit}.Run()
	sum, most := 0.0, 0.0
	for i, used := range load.Use(p, w.s) {
		sum += used - before[i]
		most = max(most, used-before[i])
	}
	return most * instances / sum, load.Quantile(all, .99), len(all) - load.Answered(all)
}

// visit draws a connection.
func visit(dice *rand.Rand) load.Visit {
	ms := large
	if dice.Float64() < smalls {
		ms = small
	}
	return load.Visit{Path: fmt.Sprintf("/?ms=%g", ms), Requests: requests}
}

func rows(out *sheet.Sheet, ways []way) {
	for _, w := range ways {
		m, goal := out.Median(w.name), ""
		if w.name == score {
			goal = "≤ 1.15"
		}
		out.Row("80:20 small:large requests, processor of the busiest of 4 instances over the mean, "+
			w.name, goal, "", fmt.Sprintf("%.2f (p99 %.0f ms; %.0f failed)", m,
			out.Median(w.name+", p99"), out.Quantile(w.name+", failed", 1)), m <= 1.15)
	}
}
