//go:build !race

package agent

// manyInstances is the size of a large service on one host.
const manyInstances = 500
