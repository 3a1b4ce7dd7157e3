package main

import "testing"

func TestWorkIsMeasured(t *testing.T) {
	if n := perMillisecond(); n < 10 || n > 1e6 {
		t.Errorf("%g hashes in a millisecond", n)
	}
}
