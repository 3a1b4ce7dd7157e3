package spec

import "pando.run/pando"

// runtimeConflicts returns the keys of a spec that a runtime of the host cannot have.
func runtimeConflicts(s pando.Spec) (out []conflict) {
	if s.Runtime == "" {
		return nil
	}
	add := func(is bool, path, text string) {
		if is {
			out = append(out, conflict{path, text})
		}
	}
	add(len(s.Grants) > 0, "grants", "parts of the host are given by Pando's own runtime: leave "+
		"`runtime` out")
	add(s.Seeded(), "replicate.from", "the program of a runtime cannot be stored: leave `runtime` out")
	return out
}
