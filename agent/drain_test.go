package agent

import (
	"context"
	"errors"
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
	for now.Sub(begin) < 24*time.Hour {
		looks++
		if c.due(now, ends) == 0 {
			counts++
			c.note(now, 1, nil)
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
	if c.due(now, ends) != 0 {
		t.Error("an end does not cause a count")
	}
	c.note(now, 1, nil)
	at := now
	for counts = 0; now.Sub(at) < time.Second; now = now.Add(c.look(now, 24*time.Hour)) {
		if c.due(now, ends) == 0 {
			counts++
			c.note(now, 1, nil)
		}
	}
	if counts < 5 {
		t.Errorf("%d counts in the second after an end, want at least 5", counts)
	}
}

func TestAShortDrainIsLookedAtOften(t *testing.T) {
	var c counting
	now := time.Unix(0, 0)
	if c.due(now, 0) != 0 {
		t.Error("the first count is not due at once")
	}
	c.note(now, 1, errors.New("no namespace"))
	if c.due(now, 0) != 0 {
		t.Error("a failed count is not repeated")
	}
	c.note(now, 0, nil)
	if c.due(now, 0) != 0 {
		t.Error("a count of no flows is not repeated, though new ones may come")
	}
	c.note(now, 1, nil)
	if got := c.due(now, 0); got != drainLookMin {
		t.Errorf("the next count is due after %v, want %v", got, drainLookMin)
	}
	if got := c.look(now, 0); got != drainLookMin {
		t.Errorf("the next look is after %v, want %v", got, drainLookMin)
	}
}

// However many instances drain and however long a count takes, the host counts a fiftieth of the
// time. A short count never waits.
func TestCountsTakeAFiftiethOfTheTime(t *testing.T) {
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

// A machine under load makes counts long. They hold up a drain for recountMax, and not for fifty
// times their sum.
func TestLongCountsHoldADrainUpForTenSeconds(t *testing.T) {
	var b allowance
	now := time.Unix(0, 0)
	for range 100 { // three instances that drain, 20 to 100 ms a count
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

// slowSweeps is a steering with a large table. A sweep takes two seconds.
type slowSweeps struct{ pando.Steering }

func (s slowSweeps) Sweep(ctx context.Context) (pando.SweepReport, error) {
	if err := pando.Sleep(ctx, sim.Clock{}, 2*time.Second); err != nil {
		return pando.SweepReport{}, err
	}
	return s.Steering.Sweep(ctx)
}

// The allowance is of processor time: a count that only waited for the processor is free.
func TestACountCostsItsProcessorTime(t *testing.T) {
	for _, busy := range []bool{false, true} {
		onBench(t, func(b *bench) {
			b.front = slowSweeps{b.steering}
			if !busy {
				b.worked = func() time.Duration { return time.Millisecond }
			}
			b.restart()
			b.serving("web-1", 1)
			b.drain("web-1", false)
			b.pass(10 * time.Second)
			b.phase("web-1", pando.PhaseDrained)
			if got := b.agent.sweeper.counts.spent > 0; got != busy {
				t.Errorf("busy %v: the count costs something: %v", busy, got)
			}
		})
	}
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

// While the allowance is spent, an old report proves flows and does not prove that there are none.
func TestAnOldReportProvesNoAbsence(t *testing.T) {
	onBench(t, func(b *bench) {
		s := &translating{Steering: b.steering}
		b.front = s
		b.restart()
		b.ok(b.agent.sweeper.sweep(b.ctx, time.Now().Add(time.Nanosecond)))
		b.pass(time.Millisecond)
		now := time.Now()
		b.agent.sweeper.counts.spend(now, countDebt)
		if n, known, err := b.agent.sweeper.flows(b.ctx, "web-1", now); n != 0 || known || err != nil {
			t.Errorf("%d flows, known %v, %v; want none, and not known", n, known, err)
		}
		s.flows.Store(2)
		b.pass(2 * recountMax)
		if n, known, err := b.agent.sweeper.flows(b.ctx, "web-1", now); n != 2 || !known || err != nil {
			t.Errorf("later: %d flows, known %v, %v; want 2", n, known, err)
		}
	})
}
