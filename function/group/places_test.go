package group

import (
	"testing"
	"time"

	"pando.run/pando"
)

// kill kills the unit that was started last, once it is a second old, and waits for the next one.
func (b *bench) kill() {
	b.Helper()
	last := b.units.starts[len(b.units.starts)-1]
	b.pass(early)
	b.units.process(last.id).Kill()
	serves := func() bool { return b.serving() == 1 && len(b.units.starts) > 0 }
	b.until("another serves", 2*time.Second, func() bool {
		return serves() && b.units.starts[len(b.units.starts)-1] != last
	})
}

func TestPlacesAreUsedAgainOnceNoFlowRefersToThem(t *testing.T) {
	onBench(t, Config{Least: 1, Most: 1}, func(b *bench) {
		b.flowlets.referred = 1 << 5
		used := map[int]int{}
		for range 2*pando.LogUnit + 10 {
			b.kill()
		}
		for _, s := range b.units.starts {
			used[s.id]++
		}
		if used[5] != 1 || used[6] < 2 || used[pando.LogUnit] != 0 {
			b.Errorf("starts per place: %v", used)
		}
		if b.flowlets.scans == 0 || b.flowlets.scans > len(b.units.starts) {
			b.Errorf("%d scans for %d starts", b.flowlets.scans, len(b.units.starts))
		}
	})
}

// Flows may refer to every place of a dead unit. The group prefers such a place to no unit.
func TestPlacesAreUsedAgainIfFlowsReferToAll(t *testing.T) {
	onBench(t, Config{Least: 1, Most: 1}, func(b *bench) {
		b.flowlets.referred = ^uint64(0)
		for range pando.LogUnit + 10 {
			b.kill()
		}
	})
}

// A walk through 262,144 flows takes half a second. Meanwhile the group ticks, sees deaths and
// starts units.
func TestAWalkThroughTheTableDelaysNoTick(t *testing.T) {
	onBench(t, Config{Least: 2, Most: 2}, func(b *bench) {
		b.flowlets.scanTime = 500 * time.Millisecond
		b.until("a sweep", sweepEvery, func() bool { return b.flowlets.scanning })
		b.units.process(0).Kill()
		b.until("both serve again", 100*time.Millisecond, func() bool { return b.serving() == 2 })
		if !b.flowlets.scanning {
			b.Error("the walk ended before the unit was replaced")
		}
		b.pass(2 * sweepEvery)
		if n := len(b.flowlets.sweeps); n != 3 || b.flowlets.gapMax > Tick {
			b.Errorf("%d sweeps, up to %v between ticks", n, b.flowlets.gapMax)
		}
		b.until("a sweep", sweepEvery, func() bool { return b.flowlets.scanning })
		// The bench checks that the steering is removed after the walk.
	})
}

// A unit may end while a scan looks for flows of others. Its place must wait for the next scan.
func TestAPlaceIsFreedByAScanThatBeganLater(t *testing.T) {
	onBench(t, Config{Least: 1, Most: 1}, func(b *bench) {
		b.flowlets.scanTime = 200 * time.Millisecond
		for range pando.LogUnit - 1 {
			b.kill()
		}
		// The last place is taken.
		b.until("a scan", scarce, func() bool { return b.flowlets.scanning })
		last := b.units.starts[len(b.units.starts)-1].id
		b.units.process(last).Kill()
		b.until("the end of the scan", time.Second, func() bool { return b.flowlets.scans == 1 })
		if first := b.group.units[0]; !b.group.units[last].retired || first.retired {
			b.Errorf("place %d is free, or place 0 is not: %+v", last, first)
		}
	})
}
