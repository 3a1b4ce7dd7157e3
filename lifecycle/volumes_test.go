package lifecycle

import (
	"testing"

	"pgregory.net/rapid"

	"pando.run/pando"
)

// No two instances have one ordinal. No ordinal is above the largest number of instances so far.
func TestOrdinalsAreUniqueAndDense(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		held, most := map[int]bool{}, 0
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if len(held) > 0 && rapid.Bool().Draw(t, "one ends") {
				delete(held, rapid.SampledFrom(keysOf(held)).Draw(t, "which"))
				continue
			}
			n := Ordinal(func(n int) bool { return held[n] })
			if held[n] || n < 1 {
				t.Fatalf("ordinal %d is held: %v", n, held)
			}
			held[n] = true
			if most = max(most, len(held)); n > most {
				t.Fatalf("ordinal %d, and there were at most %d instances", n, most)
			}
		}
	})
}

func keysOf(m map[int]bool) (out []int) {
	for n := 1; len(out) < len(m); n++ {
		if m[n] {
			out = append(out, n)
		}
	}
	return out
}

func TestAnInstanceHasItsVolumesUntilItsProgramEnded(t *testing.T) {
	for phase, want := range map[pando.Phase]bool{
		pando.PhasePlaced: true, pando.PhaseStarting: true, pando.PhaseReady: true,
		pando.PhaseInRotation: true, pando.PhaseDraining: true, pando.PhaseDrained: true,
		pando.PhaseFailed: false, pando.PhaseMerged: false,
	} {
		if got := HasVolumes(pando.Instance{Phase: phase, Ordinal: 1}); got != want {
			t.Errorf("%s: %v", phase, got)
		}
		if HasVolumes(pando.Instance{Phase: phase}) {
			t.Errorf("%s without an ordinal has volumes", phase)
		}
	}
}
