//go:build !failpoints

package pando

// Failpoint marks a step after which a process may die; test/fault kills processes there. Shipped
// builds have an empty Failpoint: only the build tag failpoints gives it a body.
func Failpoint(string) {}
