// Package function decides for network functions what is slow to decide (SNF §4.2, §7): how many units are active, which ones,
// when to start more. It has no clock and does no I/O: each millisecond it is told what came and what state the units
// are in, and says what to do. Which unit serves a flowlet is decided in the kernel (bpf/assign.h).
package function

import (
	"fmt"
	"math"
	"math/bits"
)

// Units is how many units one function's flowlets are spread over at most.
const Units = 64

// Activation is how many units are needed: the most that the last few ticks asked for, by demand or by the kernel's rule.
// The zero value is not usable; see NewActivation.
type Activation struct {
	UnitBytes    float64 // what one unit serves per tick
	AverageTicks float64 // time constant of the moving average of demand
	Remember     int     // ticks for which a need is remembered
	Least, Most  int     // units

	demand float64
	last   int
	needs  []int
}

// NewActivation is for ticks of a millisecond and units of unitBits per second. Demand is averaged over 20 ms, so that
// bursts are left to the growth in the kernel, which sees queues; a need is remembered for 5 ms, so that a unit does not
// come and go with each burst: 20 ms cost 2 to 4 % more units and gain 1 µs at the 75th percentile (simulated).
func NewActivation(unitBits uint64, most int) (*Activation, error) {
	if unitBits == 0 || most < 1 || most > Units {
		return nil, fmt.Errorf("activation: capacity %d bit/s, at most %d units: give a capacity and 1 to %d units", unitBits, most, Units)
	}
	return &Activation{UnitBytes: float64(unitBits) / 8000, AverageTicks: 20, Remember: 5, Least: 1, Most: most}, nil
}

// Tick is the number of units for the next tick, from the bytes of the last one and the number of units that accept now:
// more than the last Tick said if the kernel's rule took some into service.
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

// Phase is what a unit is doing.
type Phase int

// The phases, in the order in which a unit goes through them.
const (
	Cold     Phase = iota // does not run
	Starting              // takes no packets yet
	Ready                 // takes packets as soon as it is told to
	Draining              // was told to stop, and still has packets or state
)

func (p Phase) String() string {
	return [...]string{"cold", "starting", "ready", "draining"}[p]
}

// Plan is what to do in a tick.
type Plan struct {
	Accept uint64 // bit i: unit i takes new flowlets
	Ready  uint64 // bit i: the kernel's rule may take unit i into service at once
	Start  []int  // units to start
	Stop   []int  // units to drain and end
	Why    string // … and the reason, if there are any
}

// Pool says how units are kept at hand: bursts do not wait for a unit to start, so some are ready beyond those that load
// lasts for. What is needed now is started at once; what is kept is what was needed for long, and the spare.
//
// A need lasts if it took more than a tenth of some part of the window: bursts of some milliseconds, however often they come, hold
// no unit that is not spare, while a load that comes and goes within the window of Idle holds its units.
type Pool struct {
	Spare  int // units that are ready beyond those that load lasts for
	Most   int // units that there may be
	Places int // ids that they may have
	// Idle is the window of ticks over which needs are remembered, and for how long a unit stays at least.
	Idle int

	now     part  // of the window, not complete yet
	lasted  []int // what lasted in each complete part, the oldest first
	settled int   // ticks since a unit was started or stopped
}

// part is a part of the window.
type part struct {
	ticks int
	needs [Units + 1]int // ticks by need
}

// parts is into how many parts the window is divided.
const parts = 10

// lasting is the least number of units that so many ticks at most needed more than.
func (p *part) lasting(most int) int {
	n := Units
	for more := p.needs[n]; n > 0 && more <= most; more += p.needs[n] {
		n--
	}
	return n
}

// remember takes a need into the window, and returns the most that lasted in any part of it.
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

// Plan chooses the units for a need of so many. The lowest ids that are ready accept, so that low ids stay and high ones
// come and go (SNF §4.2); what is draining does not come back before it is cold.
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
		plan.Why = fmt.Sprintf("in %d ticks no more than %d of %d units were needed for long, %d spare", p.Idle, lasting, len(ready), p.Spare)
		p.settled = 0
	}
	return plan
}

// Accepting is the number of units in a set.
func Accepting(set uint64) int { return bits.OnesCount64(set) }
