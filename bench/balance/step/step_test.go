//go:build bench

// Package step measures the time from a step of four times the load until the 99th percentile of
// the requests is back. Pando scales one service by score. A second one has the same program and
// the same load in the same cluster at the same time. A loop with the formula of the
// HorizontalPodAutoscaler sets its number of instances every 15 seconds.
//
// An instance has a processor limit of a fifth of a core, because the instances and the clients
// share two cores. An operator's number holds Pando's service at one instance until the step. The
// command that ends the hold is part of the time. A round fails if either service has a second
// instance before the step.
package step

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/bench/load"
	"pando.run/pando/bench/sheet"
	"pando.run/pando/lab/labtest"
)

const (
	rounds   = 5
	cpus     = 0.2 // limit of an instance
	work     = 2.0 // milliseconds of a request
	low      = 35  // requests per second: 35 % of an instance
	times    = 4   // the step
	most     = 10  // instances
	settle   = 8 * time.Second
	after    = time.Minute // of the high load
	patience = 10 * time.Second
	target   = 0.5 // of the limit: that of the loop
	// One instance scores about 0.15 before the step, and above 1 if it has more load than it can
	// bear.
	up = 0.7
)

// The p99 is back once the requests of window have a p99 of at most back times that before the
// step.
const (
	window = time.Second
	back   = 2.0
)

const (
	own  = "Pando by score"
	loop = "15-second loop"
)

func TestStep(t *testing.T) {
	p := labtest.Up(t)
	load.Worker(t, p)
	out := sheet.Curves(t, ".", "seconds since the step")
	n, after := sheet.Rounds(rounds, after)
	for round := range n {
		once(t, p, out, round, after)
	}
	rows(out)
	out.Publish("A step of four times the load: p99 over time", "ms", "--log")
}

// once measures both scalers at the same time.
func once(t *testing.T, p *labtest.Pando, out *sheet.Sheet, round int, after time.Duration) {
	pandos := deploy(p, "own", fmt.Sprintf(
		"scale: {min: 1, max: %d, by: score, up: %g, down: 0.02, quiet: 30s}", most, up))
	p.Pando("scale", pandos.Name, "1")
	looped := deploy(p, "looped", fmt.Sprintf("scale: {min: 1, max: %d}", most))
	dial := load.Dialer(p)
	l := load.Load{Dial: dial, Lasts: settle + after, Patience: patience, Seed: uint64(round),
		Rate: func(since time.Duration) float64 {
			if since < settle {
				return low
			}
			return low * times
		}}
	begin := time.Now()
	ctx, stop := context.WithCancel(t.Context())
	var scaling, calling sync.WaitGroup
	// The loop looks at other times after the step in each round, evenly apart.
	offset := period * time.Duration(2*round+1) / time.Duration(2*rounds)
	scaling.Go(func() { release(ctx, p, pandos, begin.Add(settle)) })
	scaling.Go(func() { alone(ctx, p, begin.Add(settle), pandos, looped) })
	scaling.Go(func() { autoscale(ctx, p, looped, begin.Add(settle+offset)) })
	replies := map[string][]load.Reply{}
	var mu sync.Mutex
	for name, s := range map[string]*labtest.Service{own: pandos, loop: looped} {
		l := l
		l.Address = s.VIP + ":80"
		calling.Go(func() {
			all := l.Run()
			mu.Lock()
			defer mu.Unlock()
			replies[name] = all
		})
	}
	calling.Wait()
	stop()
	scaling.Wait()
	before := load.Quantile(slices.Concat(between(replies[own], time.Second, settle),
		between(replies[loop], time.Second, settle)), .99)
	out.Keep("before", before)
	for name, all := range replies {
		took := recovery(all, before, after)
		curve(out, round, name, all, after)
		out.Keep(name, took.Seconds())
		out.Keep(name+", failed", float64(len(all)-load.Answered(all)))
		t.Logf("round %d, %s: back after %.2f s; p99 was %.0f ms", round, name, took.Seconds(),
			before)
	}
	out.Keep(own+", shrunk", float64(halts(p, pandos)))
	out.Keep(own+", instances", float64(labtest.Running(pandos.Status())))
	out.Keep(loop+", shrunk", float64(halts(p, looped)))
	out.Keep(loop+", instances", float64(labtest.Running(looped.Status())))
	for _, name := range []string{"own", "looped"} {
		p.Pando("rm", name, "--wait", "--purge")
	}
}

func deploy(p *labtest.Pando, name, scale string) *labtest.Service {
	p.Helper()
	s := p.Deploy(fmt.Sprintf("name: %s\ncommand: [./worker]\nenvironment: {WORK: \"%g\"}\n"+
		"ports: [\"80:8080\"]\nhealth: {ready: tcp 8080}\nresources: {cpus: %g}\n"+
		"balance: {by: score}\n%s\n", name, work, cpus, scale))
	s.AwaitInstances(1)
	return s
}

// release lets a service scale from the step on.
func release(ctx context.Context, p *labtest.Pando, s *labtest.Service, step time.Time) {
	if until(ctx, step) {
		p.Pando("scale", s.Name, "auto")
	}
}

// alone fails the test unless each service has one instance at the step. An instance that came
// before would take its load.
func alone(ctx context.Context, p *labtest.Pando, step time.Time, all ...*labtest.Service) {
	if !until(ctx, step) {
		return
	}
	for _, s := range all {
		st, err := p.API(p.Host()).Service(ctx, pando.DefaultService(pando.ServiceName(s.Name)))
		if err != nil {
			p.Errorf("the instances of %s at the step: %v", s.Name, err)
			continue
		}
		for _, i := range st.Instances {
			if i.Born.After(step) {
				continue // the answer came later than the scaler
			}
			if i.Role != pando.RoleFirst {
				p.Errorf("%s had more than one instance before the step: %s since %s before it", s.Name,
					i.ID, step.Sub(i.Born))
			}
		}
	}
}

// recovery returns the time from the step until the p99 is back. before is the p99 before the step
// in milliseconds, of both services: they are alike until then. A p99 that never is back took all
// the time.
func recovery(all []load.Reply, before float64, after time.Duration) time.Duration {
	for at := time.Duration(0); at+window < after; at += 50 * time.Millisecond {
		got := between(all, settle+at, settle+at+window)
		if len(got) > 0 && load.Quantile(got, .99) <= back*before {
			return at
		}
	}
	return after
}

// between returns the replies that were due in a time.
func between(all []load.Reply, from, to time.Duration) (out []load.Reply) {
	for _, r := range all {
		if r.Due >= from && r.Due < to {
			out = append(out, r)
		}
	}
	return out
}

// curve adds the p99 of each second.
func curve(out *sheet.Sheet, round int, name string, all []load.Reply, after time.Duration) {
	for at := -settle; at < after; at += time.Second {
		if got := between(all, settle+at, settle+at+time.Second); len(got) > 0 {
			out.Point(round, name, at.Seconds(), load.Quantile(got, .99))
		}
	}
}

// halts counts the instances that the scaler took out.
func halts(p *labtest.Pando, s *labtest.Service) (n int) {
	p.Helper()
	all, err := p.API(p.Host()).Why(p.Context(), pando.DefaultService(pando.ServiceName(s.Name)), 0)
	if err != nil {
		p.Fatal(err)
	}
	for _, b := range all {
		if b.Intent != nil && b.Intent.Verb == pando.VerbHalt {
			n++
		}
	}
	return n
}

// The loop of the HorizontalPodAutoscaler, by the documentation of Kubernetes (Algorithm details):
// every 15 seconds, desired = ceil(current · metric / target), unless the ratio is within 0.1 of 1.
// It shrinks to the largest number that it wanted within 300 seconds, so never here. Its metric is
// fresher than that of a metrics server: the processor use of the last two seconds.
const (
	period    = 15 * time.Second
	tolerance = 0.1
	fresh     = 2 * time.Second
)

// autoscale runs the loop from its first look on, until ctx ends.
func autoscale(ctx context.Context, p *labtest.Pando, s *labtest.Service, look time.Time) {
	for current := 1; ; look = look.Add(period) {
		if !until(ctx, look.Add(-fresh)) {
			return
		}
		former, since := load.Use(p, s), time.Now()
		if !until(ctx, look) {
			return
		}
		sum, used := 0.0, load.Use(p, s)
		for i, seconds := range used {
			sum += seconds - former[i]
		}
		ratio := sum / time.Since(since).Seconds() / float64(len(used)) / cpus / target
		desired := min(most, int(math.Ceil(float64(current)*ratio)))
		if math.Abs(ratio-1) > tolerance && desired > current {
			p.Pando("scale", s.Name, strconv.Itoa(desired))
			current = desired
		}
	}
}

// until waits for a moment. It returns false if ctx ends first.
func until(ctx context.Context, at time.Time) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(time.Until(at)):
		return ctx.Err() == nil
	}
}

func rows(out *sheet.Sheet) {
	ratio := out.Ratio(loop, own)
	out.Row(fmt.Sprintf("load × %d, until p99 is at most %g × that before: Pando by score against a "+
		"15-second loop like the HorizontalPodAutoscaler's", times, back), "≥ 20 × sooner", "",
		fmt.Sprintf("%.1f × (%.2f s against %.1f s)", ratio, out.Median(own), out.Median(loop)),
		ratio >= 20)
	shrunk := out.Quantile(own+", shrunk", 1)
	out.Row("the same: instances that leave in the next minute, worst round", "≤ 1", "",
		fmt.Sprintf("%.0f (the loop: %.0f)", shrunk, out.Quantile(loop+", shrunk", 1)), shrunk <= 1)
	out.Row("the same: instances after a minute", "", "", fmt.Sprintf("%.0f (the loop: %.0f)",
		out.Median(own+", instances"), out.Median(loop+", instances")), true)
	out.Row("the same: p99 before the step; requests without an answer, worst round", "", "",
		fmt.Sprintf("%.0f ms; %.0f (the loop: %.0f)", out.Median("before"),
			out.Quantile(own+", failed", 1), out.Quantile(loop+", failed", 1)), true)
}
