package steer

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"pando.run/pando"
)

// The canaries get their share together with any number of endpoints and any weights.
// An endpoint that drains stays without flows.
func TestCanariesGetTheirShare(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		share := rapid.Float64Range(0.01, 0.5).Draw(t, "share")
		var all []pando.Endpoint
		for range rapid.IntRange(0, 30).Draw(t, "endpoints") {
			all = append(all, pando.Endpoint{
				Revision: rapid.IntRange(1, 3).Draw(t, "revision"),
				Weight:   rapid.SampledFrom([]int{0, 25, 100, 125}).Draw(t, "weight"),
			})
		}
		before := append([]pando.Endpoint(nil), all...)
		done := Share(all, 2, share)
		var sum [2]float64
		for n, e := range all {
			side := 0
			if e.Revision == 2 {
				side = 1
			}
			sum[side] += float64(e.Weight)
			if (e.Weight > 0) != (before[n].Weight > 0) {
				t.Fatalf("weight %d became %d", before[n].Weight, e.Weight)
			}
		}
		if both := sum[0] > 0 && sum[1] > 0; done != both {
			t.Fatalf("shared: %v, and both sides take flows: %v", done, both)
		}
		if got := sum[0] / (sum[0] + sum[1]); done && math.Abs(got-share) > 0.001 {
			t.Fatalf("the canaries get %g, want %g: %+v", got, share, all)
		}
	})
}
