//go:build bench

// Package peers measures the processor time of a request by several ways to the same instances.
// Each round measures every way, in an order of its own.
package peers

import (
	"fmt"
	"os"
	"testing"
	"time"

	"pando.run/pando/bench/balance/rig"
	"pando.run/pando/bench/sheet"
)

func TestMain(m *testing.M) { rig.Main(m) }

const (
	instances = 4
	clients   = 16
)

// loads are the kinds of requests, with the goals against HAProxy.
var loads = []struct {
	name  string
	bytes int
	short bool
	goal  float64
}{
	{"keep-alive 1 KB", 1024, false, 1.6},
	{"keep-alive 100 KB", 100 << 10, false, 1.5},
	{"short 1 KB", 1024, true, 2.0},
	{"short 100 KB", 100 << 10, true, 1.7},
}

func TestPeers(t *testing.T) {
	out := sheet.New(t, ".")
	s := rig.NewStand(t, instances)
	pando, end := s.EBPF()
	defer end()
	ways := []rig.Way{pando, s.Straight(), s.HAProxy(), s.Nginx(), s.Nftables()}
	rounds, lasts := sheet.Rounds(7, 1500*time.Millisecond)
	for round := range rounds {
		for _, l := range loads {
			for n := range ways {
				w := ways[(n+round)%len(ways)]
				c := s.Measure(w, rig.Load{Bytes: l.bytes, Short: l.short, Clients: clients, Lasts: lasts})
				out.Note(round, w.Name+", "+l.name, c.PerRequest)
			}
		}
	}
	for _, l := range loads {
		compare(out, l.name, "HAProxy", l.goal)
		compare(out, l.name, "nginx stream", 0)
	}
	compare(out, loads[0].name, "nftables", 1.15)
	direct := out.Ratio("eBPF, "+loads[0].name, "straight, "+loads[0].name)
	out.Row("CPU per request, keep-alive 1 KB, against straight", "≤ 1.10 ×", "",
		fmt.Sprintf("%.2f ×", direct), direct <= 1.10)
	out.Row("CPU per request against IPVS", "", "", ipvs(), true)
	out.Publish("Processor time of a request by six ways", "µs per request",
		"--log")
}

// compare adds the row of a peer: how many times its processor time is Pando's. Goal 0: none.
func compare(out *sheet.Sheet, load, peer string, goal float64) {
	pando, other := "eBPF, "+load, peer+", "+load
	r := out.Ratio(other, pando)
	text := ""
	if goal > 0 {
		text = fmt.Sprintf("≥ %.2f ×", goal)
	}
	out.Row(fmt.Sprintf("CPU per request, %s, %s against eBPF", load, peer), text, "",
		fmt.Sprintf("%.2f × (%.1f µs against %.1f µs)", r, out.Median(other), out.Median(pando)),
		r >= goal)
}

// ipvs reports whether this kernel has IPVS.
func ipvs() string {
	if _, err := os.Stat("/proc/net/ip_vs"); err != nil {
		return "not measured: this kernel has no IPVS"
	}
	return "not measured, though this kernel has IPVS"
}
