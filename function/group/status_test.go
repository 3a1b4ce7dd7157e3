package group

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
)

// status returns the answer to a status request.
func (b *bench) status() (s Status) {
	b.Helper()
	b.yield()
	defer synctest.Wait()
	if err := json.Unmarshal(b.group.Answer(b.Context(), "status"), &s); err != nil {
		b.Fatal(err)
	}
	return s
}

func TestAStatusIsTheSumOfTheUnits(t *testing.T) {
	limits := pando.Resources{MemoryBytes: 32 << 20, CPUs: 1.5}
	onBench(t, Config{Least: 2, Most: 3, PID: 7, Limits: limits}, func(b *bench) {
		s := b.status()
		if s.Name != "g" || s.PID != 7 || len(s.Devices) != 2 || s.Limits.CPUs != 1.5 {
			b.Errorf("the group is %+v", s)
		}
		f := s.Functions[0]
		if f.Function != "f" || f.Packets != 300 || s.Lost != 3 || s.Flows != 30 || s.LatencyNS[0] != 2 ||
			s.Fates[0] != [2]any{"passed", 270.0} || s.Handover["pushes"] != 6 || s.Handover["unit"] != 0 {
			b.Errorf("the sum of three units is %+v", s)
		}
		g := s.Group
		if g.Units != 3 || g.Accepting != 2 || g.UnitBits != unitBits || g.Steering.Packets != 12 {
			b.Errorf("the group's part is %+v", g)
		}
		text := string(b.group.Answer(b.Context(), "start"))
		if !strings.Contains(text, "ask for status or stop") {
			b.Errorf("another request is answered with %q", text)
		}
	})
}

// Counts that cannot be read are unknown, and not 0.
func TestUnreadCountsAreUnknown(t *testing.T) {
	onBench(t, Config{Least: 1, Most: 2}, func(b *bench) {
		b.flowlets.uncounted.Store(true)
		if s := b.status(); s.Group.Steering != nil {
			b.Errorf("the counts are %+v", s.Group.Steering)
		}
	})
}

func TestASlowUnitDelaysNoTick(t *testing.T) {
	onBench(t, Config{Least: 2, Most: 3}, func(b *bench) {
		b.units.process(1).thinking = time.Second
		before := time.Now()
		if s := b.status(); s.Flows != 30 || time.Since(before) < time.Second {
			b.Errorf("after %v the status has %d flows", time.Since(before), s.Flows)
		}
		if b.flowlets.gapMax > Tick {
			b.Errorf("%v between two ticks", b.flowlets.gapMax)
		}
	})
}

func TestStopIsAnsweredWhenTheGroupIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Config{Least: 2, Most: 3})
		b.start()
		b.pass(time.Second)
		stuck := b.units.process(1)
		stuck.stuck = true
		before := time.Now()
		b.yield()
		var s Status
		if err := json.Unmarshal(b.group.Answer(t.Context(), "stop"), &s); err != nil {
			t.Fatal(err)
		}
		b.gone()
		if s.Functions[0].Packets != 300 {
			t.Errorf("the last status is %+v", s)
		}
		if took := time.Since(before); took != closeWait || stuck.exit != "signal: killed" {
			t.Errorf("a stuck unit ended after %v by %q", took, stuck.exit)
		}
		if text := b.group.Answer(t.Context(), "status"); text != nil {
			t.Errorf("a group that is gone answers %s", text)
		}
	})
}

func TestAnAnswerNeedsALoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Config{Least: 1, Most: 1}) // it does not run
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if text := b.group.Answer(ctx, "stop"); text != nil {
			t.Errorf("the answer is %s", text)
		}
	})
}

func TestAUnitThatStartsEndsWithItsGroup(t *testing.T) {
	for _, late := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, Config{Least: 1, Most: 1})
			b.units.startTime, b.units.late = time.Hour, late
			b.start()
			b.pass(time.Second)
			before := time.Now()
			b.stop()
			if took := time.Since(before); took > 0 || len(b.units.starts) != 1 {
				t.Errorf("late %v: the end took %v after %v", late, took, b.units.starts)
			}
		})
	}
}
