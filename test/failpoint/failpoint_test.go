//go:build !failpoints

package failpoint

import "testing"

// A shipped build has failpoints in its hottest paths: a hit must cost nothing.
func TestAHitOfAShippedBuildDoesNothing(t *testing.T) {
	if n := testing.AllocsPerRun(100, func() { Hit("after the commit") }); n != 0 {
		t.Errorf("a hit allocates %v times", n)
	}
}
