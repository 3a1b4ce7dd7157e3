package meter

import (
	"math"
	"testing"
	"time"

	"pando.run/pando"
)

// A waiting byte is a share, and a drop fills the queue.
func TestAGaugeOfAQueue(t *testing.T) {
	g := &gauge{known: true}
	for n, step := range []struct {
		queue pando.LinkQueue
		want  float64
	}{
		{pando.LinkQueue{Drops: 7}, 0}, // of a time before the gauge
		{pando.LinkQueue{BacklogBytes: pando.QueueFull / 2, Drops: 7}, 0.3},
		{pando.LinkQueue{BacklogBytes: 3 * pando.QueueFull, Drops: 7}, 0.72},
		{pando.LinkQueue{Drops: 7}, 0.504},
		{pando.LinkQueue{Drops: 8}, 0.8016},
		{pando.LinkQueue{Drops: 2}, 0.56112}, // another device of that name
	} {
		if g.wait(step.queue); math.Abs(g.shown.Queue-step.want) > 1e-9 {
			t.Errorf("step %d: %g, want %g", n, g.shown.Queue, step.want)
		}
	}
}

// A gauge evens out the number of processors in use. Another control group begins anew.
func TestAGaugeOfProcessors(t *testing.T) {
	ms := time.Millisecond
	at, g := time.Unix(0, 0), &gauge{}
	for n, step := range []struct {
		cpu  time.Duration
		want float64
	}{{0, 0}, {80 * ms, 0.4}, {80 * ms, 0.2}, {280 * ms, 1.1}, {10 * ms, 1.1}} {
		g.read(at, pando.Strain{CPU: step.cpu}, pando.Host{CPUs: 4, Memory: 1 << 30})
		if math.Abs(g.shown.Processors-step.want) > 1e-9 {
			t.Errorf("step %d: %g processors, want %g", n, g.shown.Processors, step.want)
		}
		at = at.Add(100 * ms)
	}
}

// A gauge turns totals into shares of the time, and keeps the round trip time of the last sample.
func TestAGaugeOfConnections(t *testing.T) {
	ms := time.Millisecond
	at, host := time.Unix(0, 0), pando.Host{CPUs: 1, Memory: 1 << 30}
	g := &gauge{}
	for n, step := range []struct {
		stalled time.Duration
		path    pando.PathUse
		want    pando.Meter
	}{
		{0, pando.PathUse{}, pando.Meter{}},
		{50 * ms, pando.PathUse{RTT: 20 * ms, Samples: 10, Resent: 10},
			pando.Meter{Stall: 0.5, Loss: 0.3, RTTSeconds: 0.002}},
		// Nothing happens: the shares fall smoothly, and the time stays.
		{50 * ms, pando.PathUse{RTT: 20 * ms, Samples: 10, Resent: 10},
			pando.Meter{Stall: 0.35, Loss: 0.21, RTTSeconds: 0.002}},
		// The counters begin anew with another life of the instance's link.
		{50 * ms, pando.PathUse{RTT: 9 * ms, Samples: 3},
			pando.Meter{Stall: 0.245, Loss: 0.21, RTTSeconds: 0.002}},
		{50 * ms, pando.PathUse{RTT: 15 * ms, Samples: 6},
			pando.Meter{Stall: 0.1715, Loss: 0.147, RTTSeconds: 0.002}},
	} {
		known := g.read(at, pando.Strain{Stalled: step.stalled}, host)
		if known {
			g.travel(step.path)
		}
		got := pando.Meter{Stall: g.shown.Stall, Loss: g.shown.Loss, RTTSeconds: g.shown.RTTSeconds}
		near := func(x, y float64) bool { return math.Abs(x-y) < 1e-9 }
		if !near(got.Stall, step.want.Stall) || !near(got.Loss, step.want.Loss) ||
			!near(got.RTTSeconds, step.want.RTTSeconds) {
			t.Errorf("step %d: %+v, want %+v", n, got, step.want)
		}
		at = at.Add(100 * ms)
	}
}
