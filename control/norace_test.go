//go:build !race

package control

// raceDetector reports whether this test runs under the race detector.
const raceDetector = false
