package units

import (
	"math/bits"
	"time"

	"pando.run/pando/function"
)

// flowIdle is the silence after which a flow is deleted, as in the units.
const flowIdle = 5 * time.Minute

// scarce is the interval at which the group looks for reusable places when free places are scarce.
const scarce = 5 * time.Second

// sweep deletes silent flows. When free places are scarce, it frees the retired places that no flow
// refers to.
//
// A new unit in a place that a flow refers to would be mistaken for the old unit. Steering would
// act as if the new unit had the flow's state, and other units would ask it for that state. If
// every retired place is referred to and none is cold, sweep frees them all, and the log or a
// replica supplies the states.
func (g *Group) sweep() error {
	cold := 0
	var retired uint64
	for id := range g.units {
		if g.units[id].phase == function.Cold {
			cold++
		}
		if g.units[id].retired {
			retired |= 1 << id
		}
	}
	if cold < g.Most && retired != 0 && (cold == 0 || time.Since(g.scarceAt) >= scarce) {
		g.scarceAt = time.Now()
		referred, err := g.driver.Referred()
		if err != nil {
			return err
		}
		if cold == 0 && retired&^referred == 0 {
			referred = 0
		}
		for set := retired &^ referred; set != 0; set &= set - 1 {
			g.units[bits.TrailingZeros64(set)] = unit{}
		}
	}
	if time.Since(g.sweptAt) < flowIdle/10 {
		return nil
	}
	g.sweptAt = time.Now()
	_, err := g.driver.Sweep(flowIdle)
	return err
}
