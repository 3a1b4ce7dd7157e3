//go:build failpoints

package pando

// OnFailpoint runs at every failpoint. cmd/pando sets it before anything runs.
var OnFailpoint = func(string) {}

// Failpoint reports that the process reached a step after which it may die.
func Failpoint(name string) { OnFailpoint(name) }
