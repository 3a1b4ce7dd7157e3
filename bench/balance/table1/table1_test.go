//go:build bench

// Package table1 repeats Table 1 of the Fractal paper: the processors in use and the latency of a
// replicated web service behind both pipelines of Open vSwitch, with eBPF beside them.
package table1

import (
	"fmt"
	"testing"
	"time"

	"pando.run/pando/bench/balance/rig"
	"pando.run/pando/bench/sheet"
	"pando.run/pando/driver/network/ovs"
)

func TestMain(m *testing.M) { rig.Main(m) }

const (
	replicas  = 3
	clients   = 32
	pageBytes = 1024
)

// rates are page requests per second, each on a connection of its own, as httperf makes them. The
// first is the paper's. At the second, a switch without its kernel module also has time left.
var rates = []int{2000, 250}

// paper has the values of Table 1: the processors of dom0 and of a replica, and the latency.
var paper = map[string][3]string{
	"OVS learn": {"1.45 ± 0.19", "0.41, 0.31, 0.33", "2.70 ± 0.6 ms"},
	"OVS group": {"1.41 ± 0.21", "0.39, 0.33, 0.34", "2.50 ± 0.8 ms"},
}

func TestTable1(t *testing.T) {
	out := sheet.New(t, ".")
	s := rig.NewStand(t, replicas)
	kinds := []func() (rig.Way, func()){
		func() (rig.Way, func()) { return s.OVS(ovs.Learn) },
		func() (rig.Way, func()) { return s.OVS(ovs.Group) },
		s.EBPF,
	}
	rounds, lasts := sheet.Rounds(7, 6*time.Second)
	for round := range rounds {
		for n := range kinds {
			w, end := kinds[(n+round)%len(kinds)]()
			for _, rate := range rates {
				measure(out, s, round, w, rig.Load{
					Bytes: pageBytes, Short: true, Clients: clients, Lasts: lasts, Rate: rate,
				})
			}
			end()
		}
	}
	for _, way := range []string{"OVS learn", "OVS group", "eBPF"} {
		for _, rate := range rates {
			rows(out, way, rate)
		}
	}
	out.Row("the paper's remote replica", "", "one of three", "not measured: all three are local",
		true)
	out.Publish("Table 1 of Fractal: two pipelines of Open vSwitch, and eBPF",
		"µs", "--log", "--plot", "CPU per request")
}

func measure(out *sheet.Sheet, s *rig.Stand, round int, w rig.Way, l rig.Load) {
	c := s.Measure(w, l)
	note := func(name string, v float64) { out.Note(round, series(w.Name, l.Rate)+", "+name, v) }
	note("switch", c.Way)
	for i, share := range c.Servers {
		note(fmt.Sprintf("replica %c", 'A'+i), share)
	}
	note("latency", c.Mean)
	note("deviation", c.Deviation)
	note("served", c.PerSecond)
	note("CPU per request", c.PerRequest)
}

func series(way string, rate int) string { return fmt.Sprintf("%s at %d/s", way, rate) }

// rows adds the rows of a way at a rate, beside the paper's.
func rows(s *sheet.Sheet, way string, rate int) {
	name := series(way, rate)
	m := func(what string) float64 { return s.Median(name + ", " + what) }
	was := [3]string{}
	if rate == rates[0] {
		was = paper[way]
	}
	way = name
	s.Row(way+": processors of the switch", "", was[0], fmt.Sprintf("%.2f", m("switch")), true)
	s.Row(way+": processors of replicas A, B, C", "", was[1],
		fmt.Sprintf("%.2f, %.2f, %.2f", m("replica A"), m("replica B"), m("replica C")), true)
	s.Row(way+": response latency", "", was[2],
		fmt.Sprintf("%.2f ± %.2f ms", m("latency"), m("deviation")), true)
	s.Row(way+": processor time of a request, of everything", "", "",
		fmt.Sprintf("%.0f µs at %.0f per second", m("CPU per request"), m("served")), true)
}
