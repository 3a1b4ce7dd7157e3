package agent

import (
	"context"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/flows"
)

// countedSweeps counts the sweeps of the connection table.
type countedSweeps struct {
	pando.Steering
	n int
}

func (s *countedSweeps) Sweep(ctx context.Context) (pando.SweepReport, error) {
	s.n++
	return s.Steering.Sweep(ctx)
}

// The agent counts the flows of a dying instance in a sweep after its host closed it. The time of the
// drain is on the clock of control, which may be a minute ahead.
func TestADyingInstanceIsSweptOnTheClockOfItsHost(t *testing.T) {
	onBench(t, func(b *bench) {
		b.serving("web-1", 1)
		r, err := b.agent.crews.runner("web-1")
		b.ok(err)
		for _, skew := range []time.Duration{-time.Hour, 0, time.Hour} {
			counted := &countedSweeps{Steering: b.steering}
			a := b.agent
			a.sweeper = flows.NewSweeper(counted, a.Clock, a.Log)
			a.records.Lock()
			e := a.records.World.Endpoints[web]
			e.V.Balance.At = pando.AtConnect
			a.records.World.Endpoints[web] = e
			a.records.Unlock()
			b.ok(a.sweeper.Sweep(b.ctx, time.Time{}))
			b.pass(10 * time.Millisecond)
			dies := &runner{a: a, service: web, id: "web-1"}
			dies.box, dies.inst = r.box, pando.Instance{Since: time.Now().Add(skew)}
			dies.leave.closed = time.Now()
			for range 2 { // the second count may share the sweep of the first
				_, err := dies.countOpenFlows(b.ctx)
				b.ok(err)
			}
			if counted.n != 2 {
				t.Errorf("skew %v: %d sweeps, want one before it was closed and one after", skew, counted.n)
			}
		}
	})
}
