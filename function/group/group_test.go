package group

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
)

func TestAGroupServesOnceItsLeastUnitsAreReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Config{Least: 2, Most: 4})
		b.units.startAs = func(id int) (time.Duration, error) {
			return time.Duration(1+id) * 50 * time.Millisecond, nil
		}
		b.start()
		b.pass(90 * time.Millisecond)
		if !b.readyAt.IsZero() || b.flowlets.accepting != 0b1 {
			t.Errorf("with one unit of two: ready at %v, accepting %b", b.readyAt, b.flowlets.accepting)
		}
		b.pass(200 * time.Millisecond)
		if took := b.readyAt.Sub(b.born); took < 100*time.Millisecond || took > 103*time.Millisecond {
			t.Errorf("the group serves after %v", took)
		}
		// The third is a spare: the kernel may add it at once.
		if len(b.units.starts) != 3 || b.flowlets.accepting != 0b11 || b.flowlets.ready != 0b111 {
			t.Errorf("%d starts, accepting %b, ready %b",
				len(b.units.starts), b.flowlets.accepting, b.flowlets.ready)
		}
		if b.memory.alive != 0b111 || b.flowlets.gapMax > Tick {
			t.Errorf("alive %b, up to %v between ticks", b.memory.alive, b.flowlets.gapMax)
		}
	})
}

func TestADeadUnitIsReplacedAtOnce(t *testing.T) {
	onBench(t, Config{Least: 2, Most: 4}, func(b *bench) {
		b.pass(time.Second)
		b.memory.report(0, pando.UnitLoad{Waiting: 3})
		b.units.process(0).Kill()
		b.pass(Tick)
		if b.flowlets.accepting != 0b110 || b.flowlets.devices[0] != "" || b.memory.alive&1 != 0 {
			b.Errorf("a dead unit: accepting %b, device %q, alive %b",
				b.flowlets.accepting, b.flowlets.devices[0], b.memory.alive)
		}
		if !slices.Equal(b.memory.cleared, []int{0}) {
			b.Errorf("the reports of %v were cleared", b.memory.cleared)
		}
		starts := b.units.starts
		// Flows may refer to place 0.
		if len(starts) != 4 || starts[3].id != 3 {
			b.Fatalf("starts: %v", starts)
		}
		want := "unit g.0 ended (signal: killed: a cause); another takes its place: " +
			"the last words\n  panicked\n  bye\n"
		if b.log.String() != want {
			b.Errorf("the log has %q, want %q", b.log, want)
		}
		b.pass(100 * time.Millisecond)
		if c := b.group.counts; c.Died != 1 || c.Started != 4 || c.Left != 0 || c.Failed != 0 {
			b.Errorf("counts %+v", c)
		}
	})
}

// A unit that dies young may be one that always dies.
func TestAYoungDeathDelaysTheNextStart(t *testing.T) {
	onBench(t, Config{Least: 1, Most: 1}, func(b *bench) {
		for range 3 {
			before := len(b.units.starts)
			b.units.process(b.units.starts[before-1].id).Kill()
			died := time.Now()
			b.until("another start", 2*time.Second, func() bool { return len(b.units.starts) > before })
			young := b.units.starts[before-1].at.Add(early).After(died)
			wait := b.units.starts[before].at.Sub(died)
			if young != (wait >= early) {
				b.Errorf("young %v, and the next start waited %v", young, wait)
			}
			b.until("it serves", time.Second, func() bool { return b.serving() == 1 })
		}
	})
}

func TestAUnitThatCannotStartHarmsNoOther(t *testing.T) {
	onBench(t, Config{Least: 2, Most: 2}, func(b *bench) {
		b.pass(time.Second)
		b.units.startAs = func(int) (time.Duration, error) {
			return 10 * time.Millisecond, errors.New("the module is missing")
		}
		before := len(b.units.starts)
		b.units.process(0).Kill()
		for passed := time.Duration(0); passed < 2*time.Minute; passed += 100 * time.Millisecond {
			b.pass(100 * time.Millisecond)
			if b.flowlets.accepting != 0b10 {
				b.Fatalf("after %v: accepting %b", passed, b.flowlets.accepting)
			}
		}
		var waits []time.Duration
		starts := b.units.starts[before:]
		for n := range starts[1:] {
			waits = append(waits, starts[n+1].at.Sub(starts[n].at).Truncate(time.Second))
		}
		want := []time.Duration{1, 2, 4, 8, 16, 30, 30}
		for n := range want {
			want[n] *= time.Second
		}
		if !slices.Equal(waits, want) {
			b.Errorf("the waits between starts are %v, want %v", waits, want)
		}
		failure := b.status().Group.Failure
		if !strings.HasSuffix(failure, "the module is missing; the next try is in 30s") {
			b.Errorf("the failure is %q", failure)
		}
		b.units.startAs = nil
		b.until("both serve again", time.Minute, func() bool { return b.serving() == 2 })
		if s := b.status().Group; s.Failure != "" || s.Counts.Failed != uint64(len(starts)) {
			b.Errorf("after the repair: %+v", s)
		}
	})
}

func TestAGroupThatCannotStartEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Config{Least: 2, Most: 4})
		missing := errors.New("the module is missing")
		b.units.startAs = func(id int) (time.Duration, error) {
			return []time.Duration{10 * time.Millisecond, 20 * time.Millisecond, time.Hour}[id],
				[]error{nil, missing, nil}[id]
		}
		b.fails = missing
		b.start()
		<-b.ended
		if took := time.Since(b.born); took > 30*time.Millisecond {
			t.Errorf("the end took %v: it waited for a unit that starts", took)
		}
		b.gone()
	})
}

func TestAGroupGrowsWithItsLoadAndShrinksAgain(t *testing.T) {
	onBench(t, Config{Least: 1, Most: 4}, func(b *bench) {
		b.flowlets.load(2.5)
		grown := b.until("three serve", time.Second, func() bool { return b.serving() == 3 })
		if grown > 200*time.Millisecond {
			b.Errorf("growth took %v", grown)
		}
		b.pass(keep + time.Second)
		if len(b.units.alive) != 4 || b.group.counts.Left != 0 {
			b.Errorf("under load: %d alive, %+v", len(b.units.alive), b.group.counts)
		}
		all := maps.Clone(b.units.alive)
		b.flowlets.load(0.1)
		b.until("one serves", time.Second, func() bool { return b.serving() == 1 })
		if len(b.units.alive) != 4 {
			b.Errorf("units left at once: %d alive", len(b.units.alive))
		}
		shrunk := b.until("two left", time.Minute, func() bool { return len(b.units.alive) == 2 })
		if shrunk < keep {
			b.Errorf("the units left after %v", shrunk)
		}
		b.pass(time.Minute)
		if c := b.group.counts; len(b.units.alive) != 2 || c.Left != 2 || c.Died != 0 {
			b.Errorf("%d alive, %+v", len(b.units.alive), c)
		}
		left := 0
		for _, p := range all {
			if !p.leftAt.IsZero() {
				left++
			}
		}
		if left != 2 || !strings.Contains(b.log.String(), "unit g.3 leaves: in 10000 ticks") {
			b.Errorf("%d were ordered to leave; the log: %s", left, b.log)
		}
		if s := b.status(); s.Functions[0].Packets != 400 {
			b.Errorf("two units left and two work: %+v", s.Functions)
		}
	})
}

// A leaving unit gets no new flowlets, and answers others until it has handed over its flows.
func TestALeavingUnitGetsNoFlowlets(t *testing.T) {
	onBench(t, Config{Least: 1, Most: 3}, func(b *bench) {
		b.flowlets.load(1.5)
		b.pass(2 * time.Second)
		p := b.units.process(2)
		p.stuck = true // it hands over its flows for long
		b.flowlets.load(0.1)
		b.until("one leaves", time.Minute, func() bool { return b.flowlets.ready == 0b11 })
		wait := b.until("the order", time.Second, func() bool { return !p.leftAt.IsZero() })
		if wait != (leaveTicks-1)*Tick {
			b.Errorf("the order came %v after the last flowlet", wait)
		}
		b.pass(time.Second)
		if b.memory.alive != 0b111 || b.group.counts.Left != 0 {
			b.Errorf("alive %b: a leaving unit still answers", b.memory.alive)
		}
		p.die("exit status 0", nil)
		b.pass(Tick)
		if b.memory.alive != 0b11 || b.group.counts.Left != 1 {
			b.Errorf("alive %b, counts %+v", b.memory.alive, b.group.counts)
		}
	})
}

func TestAllUnitsDieAtOnce(t *testing.T) {
	onBench(t, Config{Least: 3, Most: 4}, func(b *bench) {
		b.pass(time.Second)
		for id := range 4 {
			b.units.process(id).Kill()
		}
		b.pass(Tick)
		if b.flowlets.accepting|b.flowlets.ready != 0 || b.memory.alive != 0 {
			b.Errorf("without units: accepting %b, alive %b", b.flowlets.accepting, b.memory.alive)
		}
		b.until("three serve again", 100*time.Millisecond, func() bool { return b.serving() == 3 })
		if c := b.group.counts; c.Died != 4 || c.Failed != 0 {
			b.Errorf("counts %+v", c)
		}
	})
}

func TestAUnitThatCannotBeSteeredToIsReplaced(t *testing.T) {
	onBench(t, Config{Least: 2, Most: 2}, func(b *bench) {
		b.pass(time.Second)
		b.flowlets.refused = errors.New("no memory")
		b.units.process(0).Kill()
		b.pass(2 * time.Second)
		if b.flowlets.accepting != 0b10 || !strings.Contains(b.log.String(),
			"unit g.2 ends, because it cannot be steered to: no memory\n") {
			b.Errorf("accepting %b, the log: %s", b.flowlets.accepting, b.log)
		}
		b.flowlets.refused = nil
		b.until("both serve again", 2*time.Second, func() bool { return b.serving() == 2 })
	})
}

// The device of a unit that dies at its start is gone before the group can use it.
func TestAUnitThatDiesAtItsStartIsReplaced(t *testing.T) {
	onBench(t, Config{Least: 1, Most: 1}, func(b *bench) {
		b.pass(time.Second)
		b.flowlets.refused = pando.ErrNotFound
		b.units.process(0).Kill()
		b.pass(60 * time.Millisecond)
		b.units.process(1).Kill()
		b.flowlets.refused = nil
		b.until("a unit serves", 2*time.Second, func() bool { return b.serving() == 1 })
		if strings.Contains(b.log.String(), "cannot be steered to") {
			b.Errorf("the log: %s", b.log)
		}
	})
}

func TestTheRuleGetsFreshReportsOnly(t *testing.T) {
	onBench(t, Config{Least: 2, Most: 2}, func(b *bench) {
		b.memory.report(0, pando.UnitLoad{Age: time.Millisecond, Backlog: 7 * time.Millisecond})
		b.memory.report(1, pando.UnitLoad{Age: fresh, Backlog: time.Second, Waiting: 4})
		b.memory.report(40, pando.UnitLoad{Backlog: time.Second, Waiting: 4}) // no such unit
		b.pass(Tick)
		if want := map[int]time.Duration{0: 7 * time.Millisecond}; !maps.Equal(b.flowlets.backlog, want) {
			b.Errorf("the backlog is %v, want %v", b.flowlets.backlog, want)
		}
		before := b.group.counts
		b.flowlets.load(0)
		b.pass(10 * Tick)
		if c := b.group.counts; c.UnitTicks-before.UnitTicks != 2*(c.Ticks-before.Ticks) {
			b.Errorf("two units took or held packets: %+v after %+v", c, before)
		}
	})
}

func TestAnOutputLogServesBeforeItsGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, Config{Least: 1, Most: 2, OutputLog: true})
		b.units.startAs = func(id int) (time.Duration, error) {
			if id == pando.LogUnit {
				return 300 * time.Millisecond, nil
			}
			return 50 * time.Millisecond, nil
		}
		b.start()
		b.pass(200 * time.Millisecond)
		if !b.readyAt.IsZero() || b.serving() != 1 {
			t.Errorf("without its log: ready at %v, %d serve", b.readyAt, b.serving())
		}
		b.pass(200 * time.Millisecond)
		if b.readyAt.IsZero() {
			t.Error("the group does not serve")
		}
		const log = uint64(1) << pando.LogUnit
		if b.memory.alive&log == 0 || (b.flowlets.accepting|b.flowlets.ready)&log != 0 {
			t.Errorf("alive %b, accepting %b", b.memory.alive, b.flowlets.accepting)
		}
		b.pass(time.Second)
		b.units.process(pando.LogUnit).Kill()
		b.pass(Tick)
		last := b.units.starts[len(b.units.starts)-1]
		if last.id != pando.LogUnit || b.memory.alive&log != 0 {
			t.Errorf("after the death of the log: started %v, alive %b", last, b.memory.alive)
		}
		b.pass(time.Second)
		if s := b.status().Group; s.Units != 2 || s.Counts.Died != 1 || b.memory.alive&log == 0 {
			t.Errorf("%+v, alive %b", s, b.memory.alive)
		}
	})
}
