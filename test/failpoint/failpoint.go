//go:build !failpoints

// Package failpoint marks the steps after which a process may die. test/fault kills processes
// there.
//
// It never does anything in a shipped build: only the build tag failpoints gives Hit a body.
package failpoint

// Hit reports that the process reached a step after which it may die.
func Hit(string) {}
