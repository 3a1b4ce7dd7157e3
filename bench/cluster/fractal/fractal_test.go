//go:build bench

// Package fractal repeats the evaluation of the Fractal paper (§4, Fig. 7 to 10) on virtual hosts:
// the processor of each instance by rate and number, the latency with local and remote replicas,
// the processor of each as local replicas become remote, and a ramp that an instance answers with
// copies of itself. The hosts and the client share one machine: rates are a fifth of the paper's.
package fractal

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"pando.run/pando/bench/sheet"
	"pando.run/pando/lab/labtest"
)

const (
	rounds = 5
	lasts  = 2 * time.Second // one measurement
)

func TestFractal(t *testing.T) {
	t.Run("processor", byRate)
	t.Run("latency", byPlace)
	t.Run("mix", byMix)
	t.Run("ramp", byRamp)
}

// up makes a cluster of hosts that all take instances.
func up(t *testing.T, hosts int) *labtest.Pando {
	return labtest.UpWith(t, labtest.Options{Hosts: hosts, One: true})
}

// Each instance may use a part of a processor. The paper gives it a core of its own. All instances
// share two cores here, so a copy adds room only if each has a limit.
const (
	pageLimit = "resources: {cpus: 0.08}" // of the web server: about 200 pages of 110 KB a second
	siteLimit = 0.1                       // of the website
)

// serving deploys the web server with some instances, and waits until its page is there.
func serving(
	p *labtest.Pando, name, place string, instances int, more ...string,
) *labtest.Service {
	s := p.Deploy(labtest.Echo(name, append(more, "place: {"+place+"}",
		fmt.Sprintf("scale: {min: %d, max: %d}", instances, instances))...))
	s.AwaitInstances(instances)
	s.AwaitPage(labtest.Client)
	return s
}

func (l load) to(p *labtest.Pando, s *labtest.Service) load {
	l.dial, l.address = p.Dialer(labtest.Client), s.VIP+":80"
	return l
}

// byRate is Fig. 7: the processor of each instance as the rate grows, for one to four instances.
func byRate(t *testing.T) {
	out := sheet.Curves(t, "rate", "requests/s")
	p := up(t, 1)
	instances := []int{1, 2, 3, 4}
	services := map[int]*labtest.Service{}
	for _, n := range instances {
		services[n] = serving(p, fmt.Sprintf("web%d", n), "near: first", n)
	}
	rates := []float64{100, 200, 400, 600}
	for round := range rounds {
		for _, n := range instances {
			for _, rate := range rates {
				l := load{bytes: pages, rate: always(rate), lasts: lasts}.to(p, services[n])
				each, most := busy(t, p, services[n], func() { l.run(t) })
				out.Point(round, plural(n), rate, each)
				if rate == rates[len(rates)-1] {
					out.Keep(fmt.Sprint("at ", n), each)
					out.Keep(fmt.Sprint("spread ", n), most/each)
				}
			}
		}
	}
	at := func(n int) float64 { return out.Median(fmt.Sprint("at ", n)) }
	out.Row(fmt.Sprintf("%.0f requests/s: the processor of an instance with 2, 3 and 4 of them, "+
		"against 1", rates[len(rates)-1]), "≤ 1.15 of an equal share", "near an equal share",
		fmt.Sprintf("%.2f, %.2f and %.2f of %.1f %%", at(2)/at(1), at(3)/at(1), at(4)/at(1), at(1)),
		at(2)/at(1) <= 1.15/2 && at(3)/at(1) <= 1.15/3 && at(4)/at(1) <= 1.15/4)
	spread := out.Median("spread 4")
	out.Row("the same: the busiest of 4 instances against their mean", "≤ 1.25 ×", "",
		fmt.Sprintf("%.2f ×", spread), spread <= 1.25)
	out.Publish("The processor of an instance by rate (Fractal Fig. 7)", "per cent of a processor")
}

func plural(n int) string {
	if n == 1 {
		return "1 instance"
	}
	return fmt.Sprintf("%d instances", n)
}

// byPlace is Fig. 8: the latency of a page of 110 KB without a replica, with a local one, with a
// remote one, and with both.
func byPlace(t *testing.T) {
	out := sheet.Curves(t, "place", "requests/s")
	p := up(t, 2)
	ways := []struct {
		name string
		s    *labtest.Service
	}{
		{"no replica", serving(p, "none", "near: first", 1, pageLimit)},
		{"local replica", serving(p, "local", "near: first", 2, pageLimit)},
		{"remote replica", serving(p, "remote", "spread: host", 2, pageLimit)},
		{"local and remote replicas", serving(p, "both", "spread: host", 4, pageLimit)},
	}
	rates := []float64{50, 100, 150, 200, 250}
	for round := range rounds {
		for n := range ways {
			w := ways[(n+round)%len(ways)]
			for _, rate := range rates {
				got := load{bytes: func(*rand.Rand) int { return 110 << 10 }, rate: always(rate),
					lasts: lasts}.to(p, w.s).run(t)
				m := mean(got)
				out.Point(round, w.name, rate, m)
				if rate == rates[1] {
					out.Keep(w.name, m)
				}
			}
		}
	}
	local, remote := out.Median("local replica"), out.Median("remote replica")
	out.Row(fmt.Sprintf("110 KB, %.0f requests/s, mean latency: a remote replica against a local one",
		rates[1]), "≤ 1.3 ×", "a slight inflation", fmt.Sprintf("%.2f × (%.2f ms against %.2f ms)",
		remote/local, remote, local), remote/local <= 1.3)
	none, both := out.Median("no replica"), out.Median("local and remote replicas")
	out.Row("the same: no replica; both", "", "",
		fmt.Sprintf("%.2f ms; %.2f ms", none, both), true)
	out.Publish("The latency with local and remote replicas (Fractal Fig. 8)", "ms", "requests/s")
}

// byMix is Fig. 9: the processor of four instances as some of them become remote.

func byMix(t *testing.T) {
	out := sheet.Curves(t, "mix", "remote instances")
	p := up(t, 4)
	ways := []struct {
		remote float64
		s      *labtest.Service
	}{
		{0, serving(p, "four", "near: first", 4)},
		{3, serving(p, "one", "spread: host", 4)},
		{4, serving(p, "far", "near: first, only: host="+p.Hosts[3], 4)},
	}
	for round := range rounds {
		for n := range ways {
			w := ways[(n+round)%len(ways)]
			l := load{bytes: pages, rate: always(400), lasts: lasts}.to(p, w.s)
			each, most := busy(t, p, w.s, func() { l.run(t) })
			out.Point(round, "mean of 4 instances", w.remote, each)
			out.Point(round, "busiest of 4 instances", w.remote, most)
			out.Keep(fmt.Sprint(w.remote), each)
		}
	}
	near, three := out.Median("0"), out.Median("3")
	out.Row("400 requests/s over 4 instances: the processor of an instance, 3 of them remote against "+
		"all local", "within 10 %", "a small difference",
		fmt.Sprintf("%.2f × (%.1f %% against %.1f %%)", three/near, three, near),
		three/near < 1.1 && three/near > 0.9)
	out.Publish("The processor as local replicas become remote (Fractal Fig. 9)",
		"per cent of a processor", "remote instances")
}

// The ramp of Fig. 10: one step of rate after the other, and the rate at which an instance asks for
// a copy. The paper's are 400 requests/s every 20 s, and 1,000.
const (
	step      = 80.0
	stepLasts = 2 * time.Second
	steps     = 8
	high      = 200
)

// byRamp is Fig. 10: the latency of clients while the rate grows and the instances copy themselves,
// beside one instance that does not.

func byRamp(t *testing.T) {
	out := sheet.Curves(t, "ramp", "requests/s")
	for round := range rounds {
		t.Run(fmt.Sprint(round), func(t *testing.T) { rampOnce(t, out, round) })
	}
	own, alone := out.Median("replicates"), out.Median("alone")
	out.Row(fmt.Sprintf("a ramp to %.0f requests/s, an instance asks at %d: p99 in the last step "+
		"against the first", step*steps, high), "≤ 2 ×", "near the first after each copy",
		fmt.Sprintf("%.2f × (%.1f ms, %.0f instances)", own/out.Median("first"), own,
			out.Median("instances")), own/out.Median("first") <= 2)
	cost := out.Median("first of replicates") / out.Median("first of alone")
	out.Row("the first step: an instance that may replicate against one that may not, p50", "≤ 1.1 ×",
		"no overhead", fmt.Sprintf("%.2f ×", cost), cost <= 1.1)
	out.Row("the last step of an instance that may not, p99", "", "",
		fmt.Sprintf("%.1f ms", alone), true)
	out.Publish("A ramp that the service answers with copies (Fractal Fig. 10)", "ms")
}

func rampOnce(t *testing.T, out *sheet.Sheet, round int) {
	p := labtest.Up(t)
	ramp := func(since time.Duration) float64 { return step * float64(1+int(since/stepLasts)) }
	for _, w := range []struct {
		name string
		most int
	}{{"alone", 1}, {"replicates", 8}} {
		s := site(t, p, w.most)
		got := load{rate: ramp,
			lasts: steps * stepLasts}.to(p, s).run(t)
		for n := range steps {
			var of []reply
			for _, r := range got {
				if r.due >= time.Duration(n)*stepLasts && r.due < time.Duration(n+1)*stepLasts {
					of = append(of, r)
				}
			}
			p99 := quantile(of, .99)
			out.Point(round, w.name+", p99", step*float64(n+1), p99)
			out.Point(round, w.name+", p50", step*float64(n+1), quantile(of, .5))
			if n == steps-1 {
				out.Keep(w.name, p99)
			}
			if n == 0 {
				out.Keep("first of "+w.name, quantile(of, .5))
			}
			if n == 0 && w.most > 1 {
				out.Keep("first", p99)
			}
		}
		if w.most > 1 {
			out.Keep("instances", float64(labtest.Running(s.Status())))
		}
		p.Pando("rm", "website", "--wait", "--purge")
	}
}
