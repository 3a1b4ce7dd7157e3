package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/sim"
)

// A day-long connection costs a count in ten seconds, and its end is noticed within a second.
func TestADrainOfADayIsCountedRarely(t *testing.T) {
	var c counting
	begin := time.Unix(0, 0)
	now, counts, looks, ends := begin, 0, 0, uint64(3)
	isDue := func() bool { wait, _ := c.due(now, ends); return wait == 0 }
	for now.Sub(begin) < 24*time.Hour {
		looks++
		if isDue() {
			counts++
			c.note(now, 1, nil, time.Millisecond)
		}
		now = now.Add(c.look(now, now.Sub(begin)))
	}
	if counts > 8700 {
		t.Errorf("%d counts in a day, want one in 10 s", counts)
	}
	if looks > 90_000 {
		t.Errorf("%d looks in a day, want one a second", looks)
	}
	ends++ // the client says goodbye; its socket lives a little longer
	if !isDue() {
		t.Error("an end does not cause a count")
	}
	c.note(now, 1, nil, time.Millisecond)
	at := now
	for counts = 0; now.Sub(at) < time.Second; now = now.Add(c.look(now, 24*time.Hour)) {
		if isDue() {
			counts++
			c.note(now, 1, nil, time.Millisecond)
		}
	}
	if counts < 5 {
		t.Errorf("%d counts in the second after an end, want at least 5", counts)
	}
}

func TestAShortDrainIsLookedAtOften(t *testing.T) {
	var c counting
	now := time.Unix(0, 0)
	due := func() time.Duration { wait, _ := c.due(now, 0); return wait }
	if due() != 0 {
		t.Error("the first count is not due at once")
	}
	c.note(now, 1, errors.New("no namespace"), 0)
	if due() != retryWait {
		t.Error("a failed count is not repeated")
	}
	c.note(now, 1, nil, 0)
	if got := due(); got != drainLookMin {
		t.Errorf("the next count is due after %v, want %v", got, drainLookMin)
	}
	c.again()
	if due() != 0 {
		t.Error("a count is not repeated, though new flows came")
	}
	if got := c.look(now, 0); got != drainLookMin {
		t.Errorf("the next look is after %v, want %v", got, drainLookMin)
	}
}

// TestManyConnectionsThatEndCostFewCounts drains 5,000 connections within a minute. A count costs 20
// ms. The counts take a hundredth of a processor, and the end is found within a second.
func TestManyConnectionsThatEndCostFewCounts(t *testing.T) {
	const connections, lasts, cost = 5000, time.Minute, 20 * time.Millisecond
	var c counting
	begin := time.Unix(0, 0)
	now, spent, last := begin, time.Duration(0), begin
	for {
		over := min(connections, int(now.Sub(begin)*connections/lasts))
		if wait, _ := c.due(now, uint64(2*over)); wait == 0 {
			spent += cost
			now = now.Add(cost)
			c.note(now, connections-over, nil, cost)
			if last = now; over == connections {
				break
			}
		}
		now = now.Add(c.look(now, now.Sub(begin)))
	}
	if most := countBurst + now.Sub(begin)*11/1000; spent > most {
		t.Errorf("the counts took %v in %v, want at most %v", spent, now.Sub(begin), most)
	}
	if late := last.Sub(begin) - lasts; late > 3*time.Second {
		t.Errorf("the end was found after %v", late)
	}
}

// However long a count of an instance takes, its prompt counts take a hundredth of the time. A short
// count never waits.
func TestPromptCountsTakeAHundredthOfTheTime(t *testing.T) {
	var b allowance
	begin := time.Unix(0, 0)
	now, spent := begin, time.Duration(0)
	const took = 40 * time.Millisecond
	for now.Sub(begin) < 10*time.Minute {
		if wait := b.wait(now); wait > 0 {
			now = now.Add(wait)
			continue
		}
		now = now.Add(took)
		spent += took
		b.spend(now, took)
	}
	share := (spent - countBurst).Seconds() / now.Sub(begin).Seconds()
	if share > 1.1/countShare || share < 0.8/countShare {
		t.Errorf("counts take %.3f of the time, want %.3f", share, 1.0/countShare)
	}
	b = allowance{}
	for range 1000 { // 10 a second of a millisecond each
		if b.wait(now) > 0 {
			t.Fatal("a short count waits")
		}
		b.spend(now, time.Millisecond)
		now = now.Add(100 * time.Millisecond)
	}
}

// A machine under load makes counts long. They hold up a drain for recountMax, and not for a hundred
// times their sum.
func TestLongCountsHoldADrainUpForTenSeconds(t *testing.T) {
	var b allowance
	now := time.Unix(0, 0)
	for range 100 {
		now = now.Add(100 * time.Millisecond)
		b.spend(now, 100*time.Millisecond)
	}
	if got := b.wait(now); got <= 0 || got > recountMax {
		t.Errorf("the next count waits for %v, want at most %v", got, recountMax)
	}
	if got := b.wait(now.Add(recountMax)); got != 0 {
		t.Errorf("after %v it waits for another %v", recountMax, got)
	}
}

// The allowance is of processor time: a count that only waited for the processor is free.
func TestACountCostsItsProcessorTime(t *testing.T) {
	for _, busy := range []bool{false, true} {
		onBench(t, func(b *bench) {
			if !busy {
				b.worked = func() time.Duration { return time.Millisecond }
			}
			b.restart()
			b.serving("web-1", 1)
			b.steering.Open(web)
			b.sandboxes.FlowsTake.Store(int64(2 * time.Second))
			b.drain("web-1", false)
			b.pass(10 * time.Second)
			r, err := b.agent.runner("web-1")
			b.ok(err)
			if got := r.leave.counting.spent > 0; got != busy {
				t.Errorf("busy %v: the count costs something: %v", busy, got)
			}
		})
	}
}

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

// Instances that end together share the reads of their service's asks, which grow with their number.
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
		b.ok(b.agent.Ready(b.ctx, i.ID))
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
		b.ok(b.agent.sweeper.sweep(b.ctx, time.Now().Add(time.Nanosecond)))
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
