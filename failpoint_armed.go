//go:build failpoints

package pando

// OnFailpoint is called at every failpoint; cmd/pando sets it before anything runs.
var OnFailpoint = func(string) {}

// Failpoint tells that a process has come to a step after which it may die.
func Failpoint(name string) { OnFailpoint(name) }
