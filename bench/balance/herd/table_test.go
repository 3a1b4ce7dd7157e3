//go:build bench

package herd

import (
	"fmt"
	"testing"
	"time"

	"pando.run/pando/bench/sheet"
)

const (
	rounds   = 5 // each with other flows
	hosts    = 10
	perHost  = 10_000
	lasts    = 10 * time.Second
	share    = 0.6
	measured = "busiest of the instances over the mean"
)

// TestHerd simulates 10 hosts with 10,000 new flows a second each. Nothing in it takes real time.
func TestHerd(t *testing.T) {
	out := sheet.New(t, ".")
	program := compiled(t)
	n, lasts := sheet.Rounds(rounds, lasts)
	for round := range n {
		for _, instances := range []int{16, 100} {
			for _, best := range []bool{false, true} {
				h := Hosts{PerHost: perHost, Share: share, Capacity: alike(instances), Hosts: hosts,
					Best: best}
				if err := h.Run(program, max(lasts, 2*time.Second), uint64(round)); err != nil {
					t.Fatal(err)
				}
				out.Note(round, name(instances, best, "in all"), Spread(h.Flows))
				out.Note(round, name(instances, best, "in 100 ms"), h.Within())
			}
		}
	}
	row := func(instances int, text string, goal bool) {
		worst := max(out.Quantile(name(instances, false, "in all"), 1),
			out.Quantile(name(instances, false, "in 100 ms"), 1))
		limit := ""
		if goal {
			limit = "≤ 1.2"
		}
		out.Row(fmt.Sprintf("%d hosts × %d new flows/s to %d instances by score, simulated: flows of "+
			"the %s%s", hosts, perHost, instances, measured, text), limit, "", fmt.Sprintf(
			"%.3f over all, %.3f within 100 ms, worst round; the best score alone %.2f and %.1f",
			out.Quantile(name(instances, false, "in all"), 1),
			out.Quantile(name(instances, false, "in 100 ms"), 1),
			out.Median(name(instances, true, "in all")),
			out.Median(name(instances, true, "in 100 ms"))), worst <= 1.2)
	}
	row(16, "", true)
	row(100, " (100 flows an interval)", false)
	out.Publish("A herd of 10 ingress hosts, simulated with the kernel's choice",
		"flows of the busiest instance over the mean", "--log")
}

func name(instances int, best bool, over string) string {
	way := "by score"
	if best {
		way = "best score alone"
	}
	return fmt.Sprintf("%d instances, %s, %s", instances, way, over)
}
