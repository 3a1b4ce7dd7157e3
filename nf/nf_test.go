package nf

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

// The simulator decides how many units there are in Rust; both are held against the same table.
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
			t.Fatalf("row %d: %d units, the table says %s", i+2, got, row[2])
		}
	}
}

func TestAPlanStartsNoMoreThanIsMissingAndStopsNothingThatIsNeeded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Pool{Spare: rapid.IntRange(0, 3).Draw(t, "spare"), Most: rapid.IntRange(1, Units).Draw(t, "most"), Idle: 2}
		phases := rapid.SliceOfN(rapid.Map(rapid.IntRange(0, 3), func(i int) Phase { return Phase(i) }), 1, Units).Draw(t, "phases")
		for range 5 {
			need := rapid.IntRange(1, p.Most).Draw(t, "need")
			plan := p.Plan(need, phases)
			check(t, &p, plan, need, phases)
			for _, id := range plan.Start {
				phases[id] = Starting
			}
			for _, id := range plan.Stop {
				phases[id] = Draining
			}
		}
	})
}

func check(t *rapid.T, p *Pool, plan Plan, need int, phases []Phase) {
	ready, alive := 0, 0
	for id, phase := range phases {
		if id >= p.Most {
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
	if plan.Accept&^plan.Ready != 0 || bits.Len64(plan.Ready) > p.Most {
		t.Fatalf("what accepts is not ready, or beyond %d units: %+v", p.Most, plan)
	}
	if got := Accepting(plan.Accept); got != min(need, ready) {
		t.Fatalf("%d of %d ready units accept, %d are needed", got, ready, need)
	}
	if started := len(plan.Start); started > max(0, need+p.Spare-alive) {
		t.Fatalf("%d starts, %d alive, %d needed and %d spare", started, alive, need, p.Spare)
	}
	for _, id := range plan.Start {
		if phases[id] != Cold {
			t.Fatalf("unit %d is %v and is started", id, phases[id])
		}
	}
	if len(plan.Stop) > 0 && ready-len(plan.Stop) < need+p.Spare {
		t.Fatalf("%d of %d ready units are stopped, %d are needed and %d spare", len(plan.Stop), ready, need, p.Spare)
	}
}

func TestACrashedUnitIsReplacedByTheNextOne(t *testing.T) {
	p := Pool{Most: 4, Idle: 100}
	plan := p.Plan(2, []Phase{Ready, Cold, Ready, Ready})
	if plan.Accept != 0b0101 || plan.Ready != 0b1101 || len(plan.Start) != 0 {
		t.Errorf("%+v", plan)
	}
}
