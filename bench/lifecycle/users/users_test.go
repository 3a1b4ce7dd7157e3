//go:build bench

// Package users measures the latency of a service by the number of concurrent users, with one, two
// and three instances (container-devops Fig. 5). The paper's service is Keystone; ours hashes for
// half a millisecond, with a quarter of a processor for each instance. So only the shapes compare.
package users

import (
	"fmt"
	"testing"
	"time"

	"pando.run/pando/bench/load"
	"pando.run/pando/bench/sheet"
	"pando.run/pando/lab/labtest"
)

const (
	rounds = 5
	lasts  = 1500 * time.Millisecond
	cpus   = 0.25 // limit of an instance
	work   = 0.5  // milliseconds of a request
	most   = 3    // instances
)

// users are the numbers of concurrent users.
var users = []int{4, 32, 128, 256, 512}

// at names the series of a number of users.
func at(curve string, users int) string { return fmt.Sprintf("%s, %d users", curve, users) }

func TestUsers(t *testing.T) {
	p := labtest.Up(t)
	load.Worker(t, p)
	var services []*labtest.Service
	for n := range most {
		s := p.Deploy(fmt.Sprintf("name: web%d\ncommand: [./worker]\nenvironment: {WORK: \"%g\"}\n"+
			"ports: [\"80:8080\"]\nhealth: {ready: tcp 8080}\nscale: {min: %d, max: %[3]d}\n"+
			"resources: {cpus: %g}\n", n+1, work, n+1, cpus))
		s.AwaitInstances(n + 1)
		services = append(services, s)
	}
	dial := load.DialerOf(p, 64)
	out := sheet.Curves(t, ".", "concurrent users")
	turns, lasts := sheet.Rounds(rounds, lasts)
	for round := range turns {
		for k, n := range users {
			for i := range services {
				i = (i + k + round) % len(services)
				all := load.Closed(dial, services[i].VIP+":80", n, lasts)
				sum := 0.0
				for _, r := range all {
					sum += r.Took.Seconds() * 1000
				}
				for curve, v := range map[string]float64{
					fmt.Sprintf("%d, mean", i+1): sum / float64(max(1, len(all))),
					fmt.Sprintf("%d, p95", i+1):  load.Quantile(all, .95),
				} {
					out.Point(round, curve, float64(n), v)
					out.Keep(at(curve, n), v)
				}
			}
		}
	}
	rows(out)
	out.Publish("Latency by users, one to three instances (container-devops Fig. 5)", "ms", "--log",
		"--plot", "mean")
}

func rows(out *sheet.Sheet) {
	for _, n := range []int{128, 256, 512} {
		mean := out.Ratio(at("3, mean", n), at("1, mean", n))
		tail := out.Ratio(at("3, p95", n), at("1, p95", n))
		out.Row(fmt.Sprintf("%d users: mean latency of three instances against one", n), "< 0.5 ×",
			"less than half", fmt.Sprintf("%.2f × (%.0f and %.0f ms; two %.0f; p95 %.2f ×)", mean,
				out.Median(at("3, mean", n)), out.Median(at("1, mean", n)), out.Median(at("2, mean", n)),
				tail), mean < 0.5)
	}
	first, last := users[0], users[len(users)-1]
	least := 0.0
	said := ""
	for i := range most {
		curve := fmt.Sprintf("%d, mean", i+1)
		grows := out.Ratio(at(curve, last), at(curve, first))
		if i == 0 || grows < least {
			least = grows
		}
		said += fmt.Sprintf("%d: %.1f → %.0f ms; ", i+1, out.Median(at(curve, first)),
			out.Median(at(curve, last)))
	}
	out.Row(fmt.Sprintf("mean latency from %d to %d users, by instances", first, last), "grows",
		"grows", fmt.Sprintf("%sat least %.0f ×", said, least), least > 1)
}
