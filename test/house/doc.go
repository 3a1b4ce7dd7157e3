// Package house holds the tests that keep the tree in order: who may import whom, and what a file may look
// like. They read the sources in-process, because a test that shells out to `go list` is served stale from Go's
// test cache. The package exports nothing and changes nothing.
package house
