//go:build bench

// Package first repeats Fig. 13 of the HAVEN paper: the round trip of the first packet of a flow,
// as a distribution. The paper pings a VIP. Here the first packet is the SYN of a connection,
// because a proxy answers no ping for its servers. Each round opens connections by every way, in
// turn.
package first

import (
	"fmt"
	"net"
	"testing"
	"time"

	"pando.run/pando/bench/balance/rig"
	"pando.run/pando/bench/sheet"
)

func TestMain(m *testing.M) { rig.Main(m) }

const (
	rounds    = 5
	packets   = 200 // of each way in a round: the number of the paper
	pause     = 2 * time.Millisecond
	instances = 4
)

// shares are the points of the distribution, in per cent of the packets.
var shares = []float64{1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99}

func TestFirst(t *testing.T) {
	out := sheet.Curves(t, ".", "per cent of the packets")
	s := rig.NewStand(t, instances)
	pando, end := s.EBPF()
	defer end()
	ways := []rig.Way{pando, s.Straight(), s.HAProxy(), s.Nftables()}
	n, _ := sheet.Rounds(rounds, 0)
	for round := range n {
		for k := range ways {
			w := ways[(k+round)%len(ways)]
			took := measure(t, s, w)
			for _, share := range shares {
				out.Point(round, w.Name, share, sheet.Quantile(took, share/100))
			}
			out.Keep(w.Name, sheet.Quantile(took, .5))
			out.Keep(w.Name+", p99", sheet.Quantile(took, .99))
		}
	}
	// The two figures of the paper's text, as lines.
	for name, micros := range map[string]float64{"HAVEN, paper": 6000, "HAProxy, paper": 500} {
		out.Point(0, name, shares[0], micros)
		out.Point(0, name, shares[len(shares)-1], micros)
	}
	rows(out, pando.Name)
	out.Publish("The round trip of the first packet of a flow (HAVEN Fig. 13)", "µs", "--log")
}

// measure opens one connection after the other, and returns the times in microseconds.
func measure(t *testing.T, s *rig.Stand, w rig.Way) (took []float64) {
	t.Helper()
	if w.Begin != nil {
		if err := w.Begin(); err != nil {
			t.Fatal(err)
		}
	}
	err := s.Client.Inside(func() error {
		for n := range packets {
			<-time.After(pause)
			begin := time.Now()
			c, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(w.To(n)))
			if err != nil {
				return err
			}
			took = append(took, float64(time.Since(begin).Nanoseconds())/1000)
			if err := c.Close(); err != nil {
				return err
			}
		}
		return nil
	})
	if w.End != nil {
		if err := w.End(); err != nil {
			t.Fatal(err)
		}
	}
	if err != nil {
		t.Fatalf("%s: %v", w.Name, err)
	}
	return took
}

func rows(out *sheet.Sheet, pando string) {
	paper := map[string]string{pando: "6 ms (through the controller)", "HAProxy": "0.5 ms"}
	for _, name := range []string{pando, "straight", "HAProxy", "nftables"} {
		out.Row("round trip of the first packet, "+name, "", paper[name], fmt.Sprintf(
			"%.0f µs p50, %.0f µs p99", out.Median(name), out.Median(name+", p99")), true)
	}
	ratio := out.Ratio(pando, "straight")
	out.Row("round trip of the first packet, p50, Pando against straight", "≤ 1.10 ×",
		"12 × HAProxy's", fmt.Sprintf("%.2f ×", ratio), ratio <= 1.10)
}
