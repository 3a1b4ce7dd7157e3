package steer

import (
	"math"

	"pando.run/pando"
)

// shareUnit is the sum of the weights of a table with canaries. Rounding costs a share less than
// 0.01 %.
const shareUnit = 1e6

// Share changes the weights so that all revisions but the current one get a share of new flows
// together. It reports false and changes nothing unless endpoints of both kinds take flows.
func Share(all []pando.Endpoint, current int, share float64) bool {
	var old, fresh float64
	for _, e := range all {
		if e.Revision == current {
			old += float64(e.Weight)
		} else {
			fresh += float64(e.Weight)
		}
	}
	if old == 0 || fresh == 0 {
		return false
	}
	for n := range all {
		e := &all[n]
		part := shareUnit * (1 - share) / old
		if e.Revision != current {
			part = shareUnit * share / fresh
		}
		if e.Weight > 0 {
			e.Weight = max(1, int(math.Round(float64(e.Weight)*part)))
		}
	}
	return true
}
