//go:build bench

// Package overload measures a service of four instances under ten times its capacity. All of them
// are healthy, and their probes share a queue and a processor limit with the work. It counts the
// instances that are taken out, by Pando and by HAProxy's checks of the same page, and the answers.
// Each round measures both, each with instances of its own.
package overload

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/bench/load"
	"pando.run/pando/bench/sheet"
	"pando.run/pando/lab/labtest"
)

const (
	rounds    = 5
	lasts     = 15 * time.Second
	instances = 4
	cpus      = 0.06 // limit of an instance: the load must fit beside it
	work      = 4.0  // milliseconds of a request
	callers   = 8    // at once, to measure the capacity
	times     = 10   // the load, in capacities
	patience  = time.Second
)

// way is one way to instances of its own. out counts its instances that were taken out so far.
type way struct {
	name, address string
	s             *labtest.Service
	out           func() int
}

const (
	own  = "Pando"
	peer = "HAProxy"
)

func TestOverload(t *testing.T) {
	p := labtest.Up(t)
	load.Worker(t, p)
	dial := load.Dialer(p)
	web := deploy(p, "web", "interval: 500ms, timeout: 500ms, fall: 2, live: http GET /live, ")
	ways := []way{{name: own, address: web.VIP + ":80", s: web, out: func() int {
		return left(p, web)
	}}}
	checked := deploy(p, "checked", "")
	address, proxy := load.HAProxyProcess(p, checked, 8000,
		"balance leastconn\n option httpchk GET /live\n timeout check 500ms",
		"check inter 500 fall 2 rise 2")
	ways = append(ways, way{name: peer, address: address, s: checked, out: func() int {
		return strings.Count(proxy.Text(), " is DOWN")
	}})
	rate := times * load.Capacity(dial, web.VIP+":80", callers, 3*time.Second)
	t.Logf("the load is %.0f requests/s", rate)
	out := sheet.New(t, ".")
	n, lasts := sheet.Rounds(rounds, lasts)
	for round := range n {
		for k := range ways {
			measure(p, ways[(k+round)%len(ways)], out, round, load.Load{Dial: dial, Lasts: lasts,
				Rate: load.Always(rate), Patience: patience, Seed: uint64(round)})
		}
	}
	rows(out, n)
	out.Publish("Ten times the capacity of a service: healthy instances that are taken out",
		"instances, or answers per second", "--log")
}

// deploy deploys the worker. A probe waits in the queue of the requests.
func deploy(p *labtest.Pando, name, live string) *labtest.Service {
	p.Helper()
	s := p.Deploy(fmt.Sprintf("name: %s\ncommand: [./worker]\n"+
		"environment: {WORK: \"%g\", QUEUE: \"1\"}\nports: [\"80:8080\"]\n"+
		"health: {%sready: tcp 8080}\nscale: {min: %d, max: %d}\nresources: {cpus: %g}\n", name, work,
		live, instances, instances, cpus))
	s.AwaitInstances(instances)
	return s
}

// left counts the decisions that took an instance of a service out: its probes, its end or a move.
func left(p *labtest.Pando, s *labtest.Service) (n int) {
	p.Helper()
	all, err := p.API(p.Host()).Why(p.Context(), pando.DefaultService(pando.ServiceName(s.Name)), 0)
	if err != nil {
		p.Fatal(err)
	}
	for _, b := range all {
		switch {
		case b.Decision != nil && b.Decision.Inputs["replaced"] > 0, // it did not answer
			b.Decision != nil && b.Decision.Kind == pando.DecidedFailed,
			b.Intent != nil && b.Intent.Verb == pando.VerbHalt:
			n++
		}
	}
	return n
}

// measure applies the load to a way, and notes the instances that were taken out and the answers.
func measure(p *labtest.Pando, w way, out *sheet.Sheet, round int, l load.Load) {
	p.Helper()
	l.Address = w.address
	before := w.out()
	ctx, stop := context.WithCancel(p.Context())
	var watching sync.WaitGroup
	late := false
	watching.Go(func() { late = overloaded(ctx, p, w.s) })
	all := l.Run()
	stop()
	watching.Wait()
	out.Note(round, w.name+", taken out", float64(w.out()-before))
	out.Note(round, w.name+", answers/s", float64(load.Answered(all))/l.Lasts.Seconds())
	if late {
		out.Keep(w.name+", seen", 1)
	}
	p.Await("the end of the overload", func() (string, bool) {
		r := p.Run(labtest.Client, "curl", "-sS", "--fail", "--max-time", "1", "http://"+w.address+"/")
		return r.Text, r.Code == 0
	})
}

// overloaded reports whether a probe of the service found an overloaded instance before ctx ended.
func overloaded(ctx context.Context, p *labtest.Pando, s *labtest.Service) (seen bool) {
	look := time.NewTicker(time.Second)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return seen
		case <-look.C:
		}
		all, err := p.API(p.Host()).Stats(ctx, pando.DefaultService(pando.ServiceName(s.Name)))
		for _, u := range all {
			seen = seen || err == nil && u.Health == pando.HealthOverloaded
		}
	}
}

func rows(out *sheet.Sheet, rounds int) {
	sum := func(series string) (n float64) {
		for _, v := range out.Values(series) {
			n += v
		}
		return n
	}
	taken := sum(own + ", taken out")
	measure := fmt.Sprintf("10 × overload of %d healthy instances for %s: instances taken out, "+
		"all rounds", instances, lasts)
	out.Row(measure, "0", "", fmt.Sprintf("%.0f in %d rounds; probes found overload in %.0f",
		taken, rounds, sum(own+", seen")), taken == 0)
	out.Row("the same by HAProxy, inter 500 fall 2, the same page", "", "",
		fmt.Sprintf("%.0f", sum(peer+", taken out")), true)
	ratio := out.Ratio(own+", answers/s", peer+", answers/s")
	out.Row(fmt.Sprintf("the same: answers within %s against HAProxy", patience), "", "",
		fmt.Sprintf("%.2f × (%.0f and %.0f a second)", ratio, out.Median(own+", answers/s"),
			out.Median(peer+", answers/s")), true)
}
