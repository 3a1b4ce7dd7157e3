package function

import (
	"encoding/csv"
	"fmt"
	"math/bits"
	"os"
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"
)

func TestActivationRemembersTheMostThatWasAskedFor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.IntRange(1, Units).Draw(t, "most")
		a, err := NewActivation(1_000_000_000, most)
		if err != nil {
			t.Fatal(err)
		}
		var demand float64
		var needs []int
		said := 0
		for range rapid.IntRange(1, 60).Draw(t, "ticks") {
			bytes := rapid.Uint64Range(0, 4_000_000).Draw(t, "bytes")
			grown := min(most, said+rapid.IntRange(0, 2).Draw(t, "grown"))
			if demand == 0 {
				demand = float64(bytes)
			} else {
				demand = demand*19/20 + float64(bytes)/20
			}
			need := 0
			for float64(need)*125_000 < demand-1e-3 {
				need++
			}
			if grown > said {
				need = max(need, grown)
			}
			needs = append(needs, need)
			want := max(1, min(most, slices.Max(needs[max(0, len(needs)-5):])))
			if said = a.Tick(bytes, grown); said != want {
				t.Fatalf("tick %d: %d units, by hand it is %d", len(needs), said, want)
			}
		}
	})
}

// The simulator computes the number of units in Rust. One table tests both.
func TestActivationIsTheSimulators(t *testing.T) {
	f, err := os.Open("testdata/activation.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil || len(rows) < 100 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	a, err := NewActivation(1_000_000_000, 20)
	if err != nil {
		t.Fatal(err)
	}
	for i, row := range rows[1:] {
		bytes, _ := strconv.ParseUint(row[0], 10, 64)
		accepting, _ := strconv.Atoi(row[1])
		if got := a.Tick(bytes, accepting); fmt.Sprint(got) != row[2] {
			t.Fatalf("row %d: %d units, the table has %s", i+2, got, row[2])
		}
	}
}

func TestAPlanStartsNoMoreThanIsMissingAndStopsNothingThatIsNeeded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.IntRange(1, Units).Draw(t, "most")
		p := Pool{Spare: rapid.IntRange(0, 3).Draw(t, "spare"), Most: most,
			Places: rapid.IntRange(most, Units).Draw(t, "places"), Idle: 2}
		phases := rapid.SliceOfN(rapid.Map(rapid.IntRange(0, 3), func(i int) Phase { return Phase(i) }),
			1, Units).Draw(t, "phases")
		lasting := 0
		for range 5 {
			need := rapid.IntRange(1, p.Most).Draw(t, "need")
			plan := p.Plan(need, phases)
			lasting = max(lasting, need)
			check(t, &p, plan, need, lasting, phases)
			for _, id := range plan.Start {
				phases[id] = Starting
			}
			for _, id := range plan.Stop {
				phases[id] = Draining
			}
		}
	})
}

// check tests a plan against the invariants of all plans. lasting is the largest need so far.
func check(t *rapid.T, p *Pool, plan Plan, need, lasting int, phases []Phase) {
	ready, alive := 0, 0
	for id, phase := range phases {
		if id >= p.Places {
			break
		}
		if phase == Ready {
			ready++
		}
		if phase == Ready || phase == Starting {
			alive++
		}
		if phase != Ready && (plan.Accept|plan.Ready)>>id&1 == 1 {
			t.Fatalf("unit %d is %v and accepts: %+v", id, phase, plan)
		}
	}
	if plan.Accept&^plan.Ready != 0 || bits.Len64(plan.Ready) > p.Places {
		t.Fatalf("an accepting unit is not ready, or beyond %d places: %+v", p.Places, plan)
	}
	if got := Accepting(plan.Accept); got != min(need, ready) {
		t.Fatalf("%d of %d ready units accept, %d are needed", got, ready, need)
	}
	started := len(plan.Start)
	if started > max(0, min(p.Most, lasting+p.Spare)-alive) || started > 0 && plan.Why == "" {
		t.Fatalf("%d starts, %d alive, %d needed and %d spare: %+v", started, alive, need, p.Spare, plan)
	}
	for _, id := range plan.Start {
		if phases[id] != Cold {
			t.Fatalf("unit %d is %v and is started", id, phases[id])
		}
	}
	if len(plan.Stop) > 0 && (ready-len(plan.Stop) < min(need, p.Most) || plan.Why == "") {
		t.Fatalf("%d of %d ready units are stopped, %d are needed: %+v",
			len(plan.Stop), ready, need, plan)
	}
}

// Load over three windows: a lasting level with bursts of some ticks above it. However often bursts
// come, the pool settles at the level plus the spare. It never falls below the long need of the
// window.
func TestBurstsHoldNoUnitAndLoadThatLastsHoldsItsOwn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const idle = 200
		p := Pool{Spare: rapid.IntRange(0, 2).Draw(t, "spare"), Most: 8, Places: 16, Idle: idle}
		level := rapid.IntRange(1, 5).Draw(t, "level")
		before := rapid.IntRange(1, 8).Draw(t, "before") // for the first window
		burst := rapid.IntRange(level, 8).Draw(t, "burst")
		length := rapid.IntRange(1, 2).Draw(t, "length") // at most a tenth of a part of 20 ticks
		start := rapid.IntRange(1, 8).Draw(t, "units")
		phases := make([]Phase, 16)
		for id := range start {
			phases[id] = Ready
		}
		needs := make([]int, 0, 12*idle)
		most, least := 0, len(phases)
		for tick := range 12 * idle {
			need := level
			if tick%20 < length {
				need = burst
			}
			if tick < idle {
				need = before
			}
			needs = append(needs, need)
			plan := p.Plan(need, phases)
			for _, id := range plan.Start {
				phases[id] = Ready
			}
			for _, id := range plan.Stop {
				phases[id] = Cold
			}
			alive := count(phases, Ready)
			if tick%7 == 0 && alive < min(8, max(need, lasted(needs, idle))) {
				t.Fatalf("tick %d: %d units, %d are needed, of late %d for long",
					tick, alive, need, lasted(needs, idle))
			}
			if tick > 11*idle {
				most, least = max(most, alive), min(least, alive)
			}
		}
		if most > min(8, max(burst, level+p.Spare)) || least < min(8, level+p.Spare) {
			t.Fatalf("%d to %d units stay for a load of %d with bursts of %d", least, most, level, burst)
		}
	})
}

// lasted returns the largest need that held in each tick of a whole part in the last window.
func lasted(needs []int, window int) (most int) {
	for level := 1; level <= 8; level++ {
		stretch := 0
		for _, need := range needs[max(0, len(needs)-window):] {
			if stretch++; need < level {
				stretch = 0
			}
			if stretch >= window/parts {
				most = level
			}
		}
	}
	return most
}

func count(phases []Phase, phase Phase) (n int) {
	for _, p := range phases {
		if p == phase {
			n++
		}
	}
	return n
}

// Four of every hundred ticks need a third unit. The fourth unit leaves after a window; the third
// is the spare.
func TestASpareUnitLeavesThoughBurstsCome(t *testing.T) {
	p := Pool{Spare: 1, Most: 4, Places: 8, Idle: 1000}
	phases := []Phase{Ready, Ready, Ready, Ready, Cold}
	var why string
	for tick := range 5000 {
		need := 2
		if tick%100 < 4 {
			need = 3
		}
		plan := p.Plan(need, phases)
		if len(plan.Start) > 0 || len(plan.Stop) > 0 && tick < 1000 {
			t.Fatalf("tick %d: %+v", tick, plan)
		}
		for _, id := range plan.Stop {
			phases[id], why = Cold, plan.Why
		}
	}
	if count(phases, Ready) != 3 ||
		why != "in 1000 ticks no more than 2 of 4 units were needed for long, 1 spare" {
		t.Errorf("%v: %s", phases, why)
	}
	for tick := range 300 { // a lasting load
		if plan := p.Plan(4, phases); len(plan.Start) > 0 {
			if tick > 0 {
				t.Errorf("the fourth comes after %d ticks", tick)
			}
			phases[plan.Start[0]] = Ready
		}
	}
	for range 900 { // it ended less than a window ago
		if plan := p.Plan(2, phases); len(plan.Stop) > 0 {
			t.Fatalf("%+v", plan)
		}
	}
}

func TestACrashedUnitIsReplacedByTheNextOne(t *testing.T) {
	p := Pool{Most: 4, Places: 4, Idle: 100}
	plan := p.Plan(2, []Phase{Ready, Cold, Ready, Ready})
	if plan.Accept != 0b0101 || plan.Ready != 0b1101 || len(plan.Start) != 0 {
		t.Errorf("%+v", plan)
	}
}
