package units

import (
	"math/bits"
	"time"

	"pando.run/pando/function"
)

// flowIdle is after how long a silent flow is forgotten, as in the units.
const flowIdle = 5 * time.Minute

// scarce is how often the group looks for places that can be used again, when there are few others.
const scarce = 5 * time.Second

// sweep forgets silent flows, and lets places be used again when there are few others: those that no flow refers to. A unit
// in the place of one that a flow was at would be taken for that one: by steering, which would go on as if the flow's state
// were there, and by other units, which would ask it. If there is no such place, the log or a replica has to do.
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
