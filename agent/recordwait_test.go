package agent

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/flows"
)

// bubbleClock is the time of a bubble.
type bubbleClock struct{ agentClock }

func (bubbleClock) Now() time.Time { return time.Now() }

// A step waits for the next one at most as long as its phase allows. The clock that wrote the begin of
// its phase may be ahead of the clock of this host.
func TestAStepIsRecordedSoonOnAnyClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, ahead := range []time.Duration{-time.Minute, 0, time.Minute} {
			for phase, most := range map[pando.Phase]time.Duration{
				pando.PhasePlaced: 0, pando.PhaseDraining: 0, pando.PhaseReady: 15 * time.Millisecond,
			} {
				a := &Agent{}
				a.Clock = bubbleClock{}
				c := newRecorder(&runner{a: a})
				c.add(pando.Instance{Phase: phase, Since: time.Now().Add(ahead)}, nil)
				if wait := c.wait(); wait > most {
					t.Errorf("%s since %s from now: it waits for %s, want at most %s", phase, ahead, wait, most)
				}
			}
		}
	})
}

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
			a.records.mu.Lock()
			e := a.records.world.Endpoints[web]
			e.V.Balance.At = pando.AtConnect
			a.records.world.Endpoints[web] = e
			a.records.mu.Unlock()
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
