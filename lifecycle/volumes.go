package lifecycle

import "pando.run/pando"

// HasVolumes reports whether an instance still has the volumes of its ordinal. The program of a
// failed instance ends, and its host keeps the successor waiting until then.
func HasVolumes(i pando.Instance) bool {
	switch i.Phase {
	case pando.PhaseFailed, pando.PhaseMerged, pando.PhaseDead:
		return false
	}
	return i.Ordinal > 0
}

// Ordinal returns the ordinal of a new instance: the lowest that no instance has. The successor of
// an instance thus gets its volumes.
func Ordinal(held func(int) bool) int {
	n := 1
	for held(n) {
		n++
	}
	return n
}
