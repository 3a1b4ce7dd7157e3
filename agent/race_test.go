//go:build race

package agent

// manyInstances is lower than without the race detector. Beside 500 instances, its runtime
// sometimes fails a check of its own (tsan_rtl.cpp).
const manyInstances = 100
