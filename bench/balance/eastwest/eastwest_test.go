//go:build bench

// Package eastwest measures the processor time of a request from an instance to another service, by
// the moment of the choice. Each round measures every way, in an order of its own.
package eastwest

import (
	"fmt"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/bench/balance/rig"
	"pando.run/pando/bench/sheet"
)

func TestMain(m *testing.M) { rig.Main(m) }

var loads = []struct {
	name  string
	bytes int
	short bool
}{
	{"keep-alive 1 KB", 1024, false}, {"keep-alive 100 KB", 100 << 10, false},
	{"short 1 KB", 1024, true},
}

func TestEastWest(t *testing.T) {
	out := sheet.New(t, ".")
	s := rig.NewStand(t, 4)
	packet, connect, end := s.East()
	defer end()
	ways := []rig.Way{packet, connect, s.Straight()}
	rounds, lasts := sheet.Rounds(7, 1500*time.Millisecond)
	for round := range rounds {
		for _, l := range loads {
			for n := range ways {
				w := ways[(n+round)%len(ways)]
				c := s.Measure(w, rig.Load{Bytes: l.bytes, Short: l.short, Clients: 16, Lasts: lasts})
				out.Note(round, w.Name+", "+l.name, c.PerRequest)
			}
		}
	}
	for _, l := range loads {
		for _, other := range []string{string(pando.AtPacket), "straight"} {
			a, b := other+", "+l.name, string(pando.AtConnect)+", "+l.name
			out.Row(fmt.Sprintf("CPU per request between services, %s, %s against connect", l.name, other),
				"", "", fmt.Sprintf("%.2f × (%.1f µs against %.1f µs)", out.Ratio(a, b), out.Median(a),
					out.Median(b)), true)
		}
	}
	out.Publish("Processor time of a request between services",
		"µs per request", "--log")
}
