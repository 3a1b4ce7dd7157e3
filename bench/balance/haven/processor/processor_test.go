//go:build bench

// Package processor repeats Fig. 14 of the HAVEN paper: the processor of the control plane while it
// balances 16 members under the high load, by resources and in turn. Here that is the server and
// the agent together, which measure the members ten times a second. A third series has the same
// members, the policy hash and no load.
package processor

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/bench/load"
	"pando.run/pando/bench/sheet"
	"pando.run/pando/lab/labtest"
)

const (
	rounds  = 5
	members = 16
	rest    = 2 * time.Second // after the members have started
	lasts   = 10 * time.Second
	every   = time.Second // of a sample
	rate    = 15          // connections per second: five sessions of 3
	small   = 50          // requests per connection
	large   = 20
)

// files are the sizes of the paper, and the requests of a connection.
var files = []load.Visit{
	{Path: "/size?bytes=1024", Requests: small},
	{Path: "/size?bytes=10240", Requests: small},
	{Path: "/size?bytes=102400", Requests: small},
	{Path: "/size?bytes=1048576", Requests: large},
	{Path: "/size?bytes=10485760", Requests: large},
}

var ways = []struct {
	name string
	by   pando.BalanceBy
	rate float64
}{
	{"by score", pando.ByScore, rate}, {"in turn", pando.ByRoundRobin, rate},
	{"no load", pando.ByHash, 0},
}

func TestProcessor(t *testing.T) {
	p := labtest.Up(t)
	out := sheet.Curves(t, ".", "seconds under the load")
	n, lasts := sheet.Rounds(rounds, lasts)
	for round := range n {
		for k := range ways {
			w := ways[(k+round)%len(ways)]
			s := p.Deploy(labtest.Echo("web", fmt.Sprintf("scale: {min: %d, max: %d}", members,
				members), fmt.Sprintf("balance: {by: %s}", w.by)))
			s.AwaitInstances(members)
			<-time.After(rest)
			measure(p, out, round, w.name, load.Load{Dial: load.Dialer(p), Address: s.VIP + ":80",
				Rate: load.Always(w.rate), Lasts: lasts, Patience: lasts, Seed: uint64(round), Visit: visit})
			p.Pando("rm", "web", "--wait", "--purge")
		}
	}
	rows(out)
	out.Publish("Processor of the control plane (HAVEN Fig. 14)", "per cent of a processor", "--log")
}

func visit(dice *rand.Rand) load.Visit { return files[dice.IntN(len(files))] }

// measure samples the processor of the daemons while a load lasts.
func measure(p *labtest.Pando, out *sheet.Sheet, round int, name string, l load.Load) {
	p.Helper()
	var calling sync.WaitGroup
	if l.Rate(0) > 0 {
		calling.Go(func() {
			all := l.Run()
			out.Keep(name+", answers/s", float64(load.Answered(all))/l.Lasts.Seconds())
		})
	}
	begin := time.Now()
	first, at := load.Daemons(p), time.Now()
	began, former := first, at
	peak := 0.0
	for due := begin.Add(every); due.Sub(begin) <= l.Lasts; due = due.Add(every) {
		<-time.After(time.Until(due))
		now, moment := load.Daemons(p), time.Now()
		share := (now - began) / moment.Sub(former).Seconds() * 100
		out.Point(round, name, due.Sub(begin).Seconds(), share)
		peak = max(peak, share)
		began, former = now, moment
	}
	out.Keep(name, (began-first)/former.Sub(at).Seconds()*100)
	out.Keep(name+", peak", peak)
	calling.Wait()
}

func rows(out *sheet.Sheet) {
	score, turn, none := out.Median("by score"), out.Median("in turn"), out.Median("no load")
	cores := float64(runtime.NumCPU())
	out.Row(fmt.Sprintf("processor of server and agent while %d members are balanced by score, high "+
		"load, measured each 100 ms", members), "≤ 1 % of the machine", "≤ 8 % (by resources)",
		fmt.Sprintf("%.2f %% of %.0f cores, %.2f %% of one; peak of a second %.1f %% of one",
			score/cores, cores, score, out.Quantile("by score, peak", 1)), score/cores <= 1)
	out.Row("the same in turn", "≤ 1 % of the machine", "≤ 7 % (in turn)",
		fmt.Sprintf("%.2f %% of %.0f cores, %.2f %% of one", turn/cores, cores, turn), turn/cores <= 1)
	out.Row("the same members, no load and no measurement", "", "",
		fmt.Sprintf("%.2f %% of %.0f cores, %.2f %% of one", none/cores, cores, none), true)
	out.Row("the load of each: answers a second by score, in turn", "", "", fmt.Sprintf("%.0f, %.0f",
		out.Median("by score, answers/s"), out.Median("in turn, answers/s")), true)
}
