//go:build failpoints

// Package failpoint marks the steps after which a process may die. This build calls OnHit there.
package failpoint

// OnHit runs at every failpoint. cmd/pando sets it before anything runs.
var OnHit = func(string) {}

// Hit reports that the process reached a step after which it may die.
func Hit(name string) { OnHit(name) }
