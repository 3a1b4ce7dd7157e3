package main

import (
	"errors"
	"flag"
	"testing"
)

// Each role reads its own flags.
func TestTheFirstWordChoosesTheRole(t *testing.T) {
	for _, args := range [][]string{{"-h"}, {"load", "-h"}, {"fn", "-h"}} {
		if err := run(t.Context(), args); !errors.Is(err, flag.ErrHelp) {
			t.Errorf("%v: %v", args, err)
		}
	}
	if err := run(t.Context(), []string{"load", "--schedule", "1,1s:1"}); err == nil ||
		errors.Is(err, flag.ErrHelp) {
		t.Errorf("load without an address: %v", err)
	}
	if err := run(t.Context(), []string{"--address", "x"}); err == nil {
		t.Error("the website takes a flag of the load generator")
	}
}
