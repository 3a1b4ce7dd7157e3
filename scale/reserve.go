package scale

import (
	"fmt"
	"slices"

	"pando.run/pando"
)

// reserve lists the phases of a warm instance in reserve or on its way there.
var reserve = []pando.Phase{pando.PhasePlaced, pando.PhaseStarting, pando.PhaseWarm}

// KeepWarm returns the moves that keep a reserve of wanted instances of one revision. Drained
// instances are of another revision or too many. They come first: starts need a permission of
// their own.
func KeepWarm(instances []pando.Instance, wanted, revision int) (drains, starts []Move) {
	n := 0
	for k := range instances {
		i := &instances[k]
		switch {
		case !i.Warm || !slices.Contains(reserve, i.Phase):
		case n < wanted && i.Revision == revision:
			n++
		case i.Phase.May(pando.PhaseDraining):
			drains = append(drains, Move{Drain: i.ID,
				Reason: fmt.Sprintf("a reserve of %d of revision %d is wanted", wanted, revision)})
		}
	}
	for ; n < wanted; n++ {
		starts = append(starts, Move{Warm: true, Reason: fmt.Sprintf("reserve %d of %d", n+1, wanted)})
	}
	return drains, starts
}
