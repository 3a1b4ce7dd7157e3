// Package house holds the tests that keep the tree in order: the allowed imports and the form of
// files. They read the sources in-process, because Go's test cache would serve stale results to a
// test that runs `go list`. The package exports nothing and changes nothing.
package house
