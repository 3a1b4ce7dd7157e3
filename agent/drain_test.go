package agent

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/runner"
	"pando.run/pando/driver/sim"
)

// TestIdleInstancesLeaveAHostInDebt drains many idle instances at once while the counts of a
// neighbour with 6,000 connections cost more than a processor has. Each count takes 30 ms, and each
// sweep a second.
func TestIdleInstancesLeaveAHostInDebt(t *testing.T) {
	for name, c := range map[string]struct {
		idle      int
		neighbour bool
		within    time.Duration
	}{
		"64":                     {64, false, 5 * time.Second},
		"124 beside a neighbour": {124, true, 15 * time.Second},
		"250 beside a neighbour": {250, true, 20 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			onBench(t, func(b *bench) {
				b.front = slowSweeps{b.steering}
				b.restart()
				b.serving("web-0", 1)
				if c.neighbour {
					for range 6000 {
						b.steering.Open(web)
					}
				}
				all := b.crowd(c.idle)
				b.sandboxes.FlowsTake.Store(int64(30 * time.Millisecond))
				if c.neighbour {
					b.drain("web-0", true)
					b.pass(20 * time.Second) // its counts have spent its allowance
				}
				var drains []pando.Stored
				for now := b.world(); len(drains) < len(all); {
					i := now.Instances[all[len(drains)].ID].V.Become(pando.PhaseDraining, time.Now(), "test")
					i.Walk = true
					drains = append(drains, i)
				}
				begin := time.Now()
				for part := range slices.Chunk(drains, max(1, len(drains)/8)) {
					b.put(part...) // the later ones meet the work of the earlier ones
					b.pass(100 * time.Millisecond)
				}
				left := func() (n int) {
					for _, i := range b.world().Instances {
						if i.V.Phase == pando.PhaseDraining && i.V.ID != "web-0" {
							n++
						}
					}
					return n
				}
				for left() > 0 && time.Since(begin) < c.within {
					b.pass(time.Second)
				}
				if n := left(); n > 0 {
					t.Errorf("%d of %d idle instances still drain after %v", n, c.idle, c.within)
				}
			})
		})
	}
}

// askedStore counts the reads of all asks of the service.
type askedStore struct {
	pando.Registry
	reads atomic.Int64
}

func (s *askedStore) Snapshot(ctx context.Context, prefix pando.Key) (pando.Snapshot, error) {
	if prefix == (pando.Intent{Service: web}).Key() {
		s.reads.Add(1)
	}
	return s.Registry.Snapshot(ctx, prefix)
}

// Instances that end together share the reads of their service's asks, which grow with their
// number.
func TestInstancesThatEndTogetherShareTheReadsOfAsks(t *testing.T) {
	onBench(t, func(b *bench) {
		store := &askedStore{Registry: b.registry}
		b.through = store
		b.restart()
		all := b.crowd(40)
		b.restart() // the next agent reads the asks of the former one
		var drains []pando.Stored
		for _, i := range all {
			i = b.world().Instances[i.ID].V.Become(pando.PhaseDraining, time.Now(), "test")
			i.Walk = true
			drains = append(drains, i)
		}
		store.reads.Store(0)
		b.put(drains...)
		b.pass(10 * time.Second)
		if n := len(b.world().Instances); n > 0 {
			t.Errorf("%d instances are left", n)
		}
		if got := store.reads.Load(); got > 1 {
			t.Errorf("40 instances read the asks of their service %d times, want once", got)
		}
	})
}

// crowd starts instances of the service at once, and returns their records.
func (b *bench) crowd(n int) (all []pando.Instance) {
	b.Helper()
	var put []pando.Stored
	for k := range n {
		i := pando.Instance{
			ID: pando.InstanceID(fmt.Sprintf("web-%d", k+1)), Service: web, Host: "h1", Revision: 1,
			Weight: 100, Phase: pando.PhasePlaced, Reason: "test", Born: time.Now(), Since: time.Now(),
		}
		all, put = append(all, i), append(put, i)
	}
	b.put(put...)
	for _, i := range all {
		b.ok(b.agent.self.Ready(b.ctx, i.ID))
	}
	b.pass(time.Second)
	return all
}

// slowSweeps is a steering with a large table. A sweep takes a second.
type slowSweeps struct{ pando.Steering }

func (s slowSweeps) Sweep(ctx context.Context) (pando.SweepReport, error) {
	if err := pando.Sleep(ctx, sim.Clock{}, time.Second); err != nil {
		return pando.SweepReport{}, err
	}
	return s.Steering.Sweep(ctx)
}

// translating is a steering with flows that no socket of an instance shows: of UDP, or on their way
// to an external endpoint.
type translating struct {
	pando.Steering
	flows atomic.Int32
}

func (s *translating) Sweep(context.Context) (pando.SweepReport, error) {
	return pando.SweepReport{Flows: map[pando.InstanceID]int{"web-1": int(s.flows.Load())}}, nil
}

// A flow that began after the last sweep holds a drain up, although the next sweep is not due.
func TestAReportFromBeforeADrainEndsNoDrain(t *testing.T) {
	onBench(t, func(b *bench) {
		s := &translating{Steering: b.steering}
		b.front = s
		b.restart()
		b.serving("web-1", 1)
		b.ok(b.agent.sweeper.Sweep(b.ctx, time.Now().Add(time.Nanosecond)))
		s.flows.Store(1)
		b.pass(time.Millisecond)
		b.drain("web-1", true)
		b.pass(time.Second)
		b.phase("web-1", pando.PhaseDraining)
		s.flows.Store(0)
		b.pass(10 * time.Second)
		if phase := b.world().Instances["web-1"].V.Phase; phase == pando.PhaseDraining {
			t.Error("it drains after its last flow")
		}
	})
}

// A program may read the first event drained before the answer of its halt. It must not sit idle
// until its agent stops it.
func TestDrainedComesAgainUntilTheInstanceDies(t *testing.T) {
	onBench(t, func(b *bench) {
		b.serving("web-1", 1)
		ctx, cancel := context.WithCancel(b.ctx)
		defer cancel()
		news, err := b.agent.self.Events(ctx, "web-1", 0)
		b.ok(err)
		var times atomic.Int64
		go func() {
			for e := range news {
				if e.Kind == pando.EventDrained {
					times.Add(1)
				}
			}
		}()
		b.drain("web-1", false)
		b.pass(runner.DieGrace - time.Second)
		n, most := times.Load(), int64(runner.DieGrace/runner.DrainedAgain)
		if n < most/2 || n > most {
			t.Errorf("the program was told %d times in %s, want about every %s", n, runner.DieGrace,
				runner.DrainedAgain)
		}
	})
}
