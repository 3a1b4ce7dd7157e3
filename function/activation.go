// Package function makes the slow decisions for network functions (SNF §4.2, §7): how many units
// are active, which ones, and when to start more. It has no clock and does no I/O. Each millisecond
// it receives the demand and the units' phases and returns a plan. The kernel decides which unit
// serves a flowlet (bpf/assign.h).
package function

import (
	"fmt"
	"math"
	"math/bits"

	"pando.run/pando"
)

// Units is the largest number of units that serve one function's flowlets.
const Units = pando.UnitsMax

// Activation computes the number of units needed: the largest need of the last ticks, by demand or
// by the kernel's rule. The zero value is not usable; see NewActivation.
type Activation struct {
	UnitBytes    float64 // bytes that one unit serves per tick
	AverageTicks float64 // time constant of the moving average of demand
	Remember     int     // ticks for which a need is remembered
	Least, Most  int     // units

	demand float64
	last   int
	needs  []int
}

// NewActivation returns an Activation for ticks of 1 ms and units of unitBits per second. It
// averages demand over 20 ms, so growth in the kernel, which sees queues, handles bursts. It
// remembers a need for 5 ms, so that a unit does not start and stop with each burst. Remembering
// for 20 ms would cost 2 to 4 % more units and gain 1 µs at the 75th percentile (simulated).
func NewActivation(unitBits uint64, most int) (*Activation, error) {
	if unitBits == 0 || most < 1 || most > Units {
		return nil, fmt.Errorf("activation: capacity %d bit/s, at most %d units: give a capacity and 1 "+
			"to %d units", unitBits, most, Units)
	}
	return &Activation{UnitBytes: float64(unitBits) / 8000, AverageTicks: 20, Remember: 5, Least: 1,
		Most: most}, nil
}

// Tick returns the number of units for the next tick. bytes is the demand of the last tick.
// accepting exceeds the last result if the kernel's rule added units since.
func (a *Activation) Tick(bytes uint64, accepting int) int {
	weight := 1 / a.AverageTicks
	if a.demand == 0 {
		weight = 1
	}
	a.demand += (float64(bytes) - a.demand) * weight
	need := int(math.Ceil(math.Min(a.demand/a.UnitBytes, Units)))
	if accepting > a.last {
		need = max(need, accepting)
	}
	a.needs = append(a.needs, need)
	if len(a.needs) > a.Remember {
		a.needs = a.needs[1:]
	}
	a.last = a.Least
	for _, n := range a.needs {
		a.last = max(a.last, n)
	}
	a.last = min(a.last, a.Most)
	return a.last
}

// Phase is the state of a unit.
type Phase int

// The phases, in the order in which a unit passes through them.
const (
	Cold     Phase = iota // not running
	Starting              // takes no packets yet
	Ready                 // takes packets once it accepts
	Draining              // stopping, but still has packets or state
)

// String returns the name of the phase.
func (p Phase) String() string {
	return [...]string{"cold", "starting", "ready", "draining"}[p]
}

// Plan lists the actions of one tick.
type Plan struct {
	Accept uint64 // bit i: unit i takes new flowlets
	Ready  uint64 // bit i: the kernel's rule may add unit i at once
	Start  []int  // units to start
	Stop   []int  // units to drain and end
	Why    string // the reason to start or stop units, or ""
}

// Pool keeps units ready, so that bursts do not wait for a unit to start. It starts the units that
// are needed now at once. It keeps the units that were needed for long, and the spare units.
//
// A need is long if it took more than a tenth of some part of the window. Bursts of some
// milliseconds hold only spare units, however often they come. A load that comes and goes within
// the window of Idle holds its units.
type Pool struct {
	Spare  int // units kept ready beyond the long need
	Most   int // largest number of units
	Places int // number of unit ids
	// Idle is the window, in ticks, that needs are remembered for. It is also a unit's least lifetime.
	Idle int

	now     part  // the current, incomplete part of the window
	lasted  []int // the long need of each complete part, oldest first
	settled int   // ticks since a unit was started or stopped
}

// part is a part of the window.
type part struct {
	ticks int
	needs [Units + 1]int // number of ticks for each need
}

// parts is the number of parts of the window.
const parts = 10

// lasting returns the smallest need that at most `most` ticks exceeded.
func (p *part) lasting(most int) int {
	n := Units
	for more := p.needs[n]; n > 0 && more <= most; more += p.needs[n] {
		n--
	}
	return n
}

// remember adds a need to the window and returns the largest long need of its parts.
func (p *Pool) remember(need int) int {
	p.now.needs[min(max(need, 0), Units)]++
	p.now.ticks++
	whole := max(p.Idle/parts, 1)
	most := p.now.lasting(whole / 10)
	if p.now.ticks >= whole {
		p.lasted = append(p.lasted, most)
		p.lasted = p.lasted[max(0, len(p.lasted)-parts):]
		p.now = part{}
	}
	for _, n := range p.lasted {
		most = max(most, n)
	}
	return most
}

// Plan chooses the units for a need. The ready units with the lowest ids accept, so that low ids
// stay and high ids come and go (SNF §4.2). A draining unit can start again once it is cold.
func (p *Pool) Plan(need int, phases []Phase) Plan {
	var plan Plan
	var ready, cold []int
	alive := 0
	for id, phase := range phases[:min(len(phases), p.Places, Units)] {
		switch phase {
		case Cold:
			cold = append(cold, id)
		case Starting:
			alive++
		case Ready:
			alive++
			ready = append(ready, id)
		}
	}
	for i, id := range ready {
		plan.Ready |= 1 << id
		if i < need {
			plan.Accept |= 1 << id
		}
	}
	lasting := p.remember(need)
	want := min(max(need, lasting+p.Spare), p.Most)
	p.settled++
	if missing := want - alive; missing > 0 && len(cold) > 0 {
		plan.Start = cold[:min(missing, len(cold))]
		plan.Why = fmt.Sprintf("%d needed now, %d for long, %d spare", need, lasting, p.Spare)
		p.settled = 0
	}
	if len(ready) > want && p.settled > p.Idle {
		plan.Stop = ready[len(ready)-1:]
		plan.Ready &^= 1 << plan.Stop[0]
		plan.Why = fmt.Sprintf("in %d ticks no more than %d of %d units were needed for long, %d spare",
			p.Idle, lasting, len(ready), p.Spare)
		p.settled = 0
	}
	return plan
}

// Accepting returns the number of units in a set.
func Accepting(set uint64) int { return bits.OnesCount64(set) }
