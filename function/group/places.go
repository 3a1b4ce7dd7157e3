package group

import (
	"errors"
	"math/bits"
	"time"

	"pando.run/pando"
	"pando.run/pando/function"
)

// flowIdle is the silence after which a flow is deleted, as in the units.
const flowIdle = 5 * time.Minute

const (
	// sweepEvery is the interval at which silent flows are deleted.
	sweepEvery = flowIdle / 10
	// scarce is the interval at which the group looks for reusable places when free places are
	// scarce.
	scarce = 5 * time.Second
)

// scan is one walk through the flow table, outside the loop. The table has up to 262,144 flows, and
// each takes a system call.
type scan struct {
	retired  uint64 // places to free, if no flow refers to them
	sweeps   bool   // delete silent flows
	referred uint64
	err      error
}

// scan begins a walk through the flow table if one is due. Its result arrives in scanned.
func (g *Group) scan() {
	if g.scans {
		return
	}
	now := g.Clock.Now()
	cold, retired := g.places()
	s := scan{sweeps: now.Sub(g.sweptAt) >= sweepEvery}
	if cold < g.Most && (cold == 0 || now.Sub(g.freedAt) >= scarce) {
		s.retired = retired
	}
	if s.retired == 0 && !s.sweeps {
		return
	}
	if s.retired != 0 {
		g.freedAt = now
	}
	if s.sweeps {
		g.sweptAt = now
	}
	g.scans = true
	go func() {
		if s.retired != 0 {
			s.referred, s.err = g.Flowlets.Referred()
		}
		if s.sweeps {
			_, err := g.Flowlets.Sweep(flowIdle)
			s.err = errors.Join(s.err, err)
		}
		g.scanned <- s
	}()
}

// places returns the number of places that a unit can start in, and the set of places that wait
// until no flow refers to them.
func (g *Group) places() (cold int, retired uint64) {
	for id := range pando.LogUnit {
		if g.units[id].phase == function.Cold {
			cold++
		}
		if g.units[id].retired {
			retired |= 1 << id
		}
	}
	return cold, retired
}

// free frees the retired places that no flow referred to during a scan.
//
// A new unit in a place that a flow refers to would be mistaken for the old unit. Steering would
// act as if the new unit had the flow's state, and other units would ask it for that state. If
// every retired place is referred to and none is cold, free frees them all, and the log or a
// replica supplies the states.
func (g *Group) free(s scan) error {
	g.scans = false
	if s.err != nil {
		return g.unscanned(s.err)
	}
	if cold, _ := g.places(); cold == 0 && s.retired&^s.referred == 0 {
		s.referred = 0
	}
	for set := s.retired &^ s.referred; set != 0; set &= set - 1 {
		g.units[bits.TrailingZeros64(set)] = unit{}
	}
	return nil
}
