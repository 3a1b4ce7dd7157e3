package group

import (
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
)

// The number of random histories, a fifth of it under the race detector, and their virtual time.
// PANDO_RUNS sets another number (`make soak N=…`). PANDO_SEED runs one history.
const (
	historiesDefault = 20 / slower
	historyTime      = 30 * time.Second
)

func number(t *testing.T, name string, otherwise uint64) uint64 {
	text := os.Getenv(name)
	switch {
	case text == "" && testing.Short() && name == "PANDO_RUNS":
		return max(1, otherwise/4) // make test-all runs all
	case text == "":
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// TestRandomHistories runs groups under random deaths, loads and faults. At every tick the least
// number of units lives or starts, no unit gets flows before it is ready, and each unit has a place
// of its own.
func TestRandomHistories(t *testing.T) {
	first, runs := number(t, "PANDO_SEED", 0), number(t, "PANDO_RUNS", historiesDefault)
	if os.Getenv("PANDO_SEED") != "" {
		runs = 1
	}
	for seed := first; seed < first+runs; seed++ {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { newHistory(t, seed).run() })
		})
	}
}

// history is a random history of one group.
type history struct {
	*bench
	random *rand.Rand
	least  int
	most   int
	log    bool
	faults []func() // each ends a fault
}

func newHistory(t *testing.T, seed uint64) *history {
	r := rand.New(rand.NewPCG(seed, 1))
	h := &history{random: r, least: 1 + r.IntN(3), log: r.IntN(3) == 0}
	h.most = h.least + r.IntN(4)
	h.bench = newBench(t, Config{Least: h.least, Most: h.most, OutputLog: h.log})
	h.units.startTime = time.Duration(1+r.IntN(300)) * time.Millisecond
	h.flowlets.scanTime = time.Duration(r.IntN(600)) * time.Millisecond
	return h
}

func (h *history) run() {
	h.start()
	h.until("the group serves", time.Second, func() bool { return !h.readyAt.IsZero() })
	for next := time.Now(); time.Since(h.born) < historyTime; h.pass(Tick) {
		h.verify()
		if !time.Now().Before(next) {
			h.act()
			next = time.Now().Add(time.Duration(h.random.IntN(500)) * time.Millisecond)
		}
	}
	h.settle()
}

// act lets something happen.
func (h *history) act() {
	switch h.random.IntN(9) {
	case 0, 1, 2:
		h.victim().Kill()
	case 3:
		for _, p := range h.ready() {
			p.Kill()
		}
	case 4, 5:
		h.flowlets.load(h.random.Float64() * float64(h.most+1))
	case 6:
		h.flowlets.referred = h.random.Uint64() | h.random.Uint64()
	case 7:
		h.victim().stuck = h.random.IntN(4) == 0
	case 8:
		h.fault()
	}
}

// fault begins a fault, or ends the oldest one.
func (h *history) fault() {
	if len(h.faults) > 1 {
		h.faults[0]()
		h.faults = h.faults[1:]
		return
	}
	if h.random.IntN(2) == 0 {
		h.units.startAs = func(id int) (time.Duration, error) {
			return time.Duration(id) * time.Millisecond, errors.New("the module is missing")
		}
		h.faults = append(h.faults, func() { h.units.startAs = nil })
		return
	}
	h.flowlets.refused = errors.New("no memory")
	h.faults = append(h.faults, func() { h.flowlets.refused = nil })
}

// ready returns the units that have started, by id.
func (h *history) ready() (all []*process) {
	for id := range pando.UnitsMax {
		if p := h.units.alive[id]; p != nil && !p.readyAt.IsZero() {
			all = append(all, p)
		}
	}
	return all
}

// victim returns a random unit that has started. If there is none, it returns a unit outside the
// group.
func (h *history) victim() *process {
	if all := h.ready(); len(all) > 0 {
		return all[h.random.IntN(len(all))]
	}
	return &process{units: h.units, id: pando.UnitsMax, end: make(chan struct{})}
}

// verify checks the promises that hold at each tick. The simulated steering and units check the
// others.
func (h *history) verify() {
	h.Helper()
	g, lives := h.group, 0
	for id, p := range h.units.alive {
		if id != pando.LogUnit && p.leftAt.IsZero() && g.units[id].leaves == 0 {
			lives++
		}
	}
	// A back-off delays starts. Without a free place, a scan looks for one.
	delayed := !time.Now().After(g.notBefore.Add(Tick)) || g.scans
	if (lives < h.least || h.log && h.units.alive[pando.LogUnit] == nil) && !delayed {
		h.Fatalf("after %v: %d units live or start, least %d, log %v: %v", time.Since(h.born), lives,
			h.least, h.log, h.units.alive)
	}
	if lives > h.most {
		h.Fatalf("after %v: %d units live or start, most %d", time.Since(h.born), lives, h.most)
	}
	if h.flowlets.gapMax > Tick {
		h.Fatalf("%v between two ticks", h.flowlets.gapMax)
	}
}

// settle ends the faults. The group must serve again, and its counts must match the history.
func (h *history) settle() {
	for _, end := range h.faults {
		end()
	}
	for _, p := range h.ready() {
		p.stuck = false
	}
	h.flowlets.load(0.5)
	h.until("the least number serves", time.Minute, func() bool {
		return h.group.complete() && h.serving() >= h.least
	})
	h.pass(time.Second)
	c, lives := h.group.counts, uint64(len(h.ready()))
	starts := int(c.Started+c.Failed) + h.units.starting
	if starts != len(h.units.starts) || c.Started != c.Died+c.Left+lives {
		h.Errorf("%d starts, %d starting, %d live: %+v", len(h.units.starts), h.units.starting, lives, c)
	}
	if c.Died == 0 {
		h.Errorf("no unit died: %+v", c)
	}
}
