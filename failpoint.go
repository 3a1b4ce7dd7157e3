//go:build !failpoints

package pando

// Failpoint marks a step after which a process may die, for the tests of what happens then (test/fault). It is nothing in
// what is shipped: only the build tag failpoints gives it a body.
func Failpoint(string) {}
