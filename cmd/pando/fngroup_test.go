package main

import (
	"errors"
	"io"
	"strings"
	"testing"

	"pando.run/pando"
)

func groupOf(t *testing.T, more ...string) error {
	t.Helper()
	args := append([]string{"nat.wasm", "--iface", "lo", "--units", "1..2"}, more...)
	return runGroup(t.Context(), Env{Stdout: io.Discard, Stderr: io.Discard}, "pando-unit", args)
}

// Units of a group receive packets from steering through AF_PACKET. AF_XDP is
// refused before anything is created.
func TestAGroupRefusesAFXDP(t *testing.T) {
	err := groupOf(t, "--port", "xdp")
	if !errors.Is(err, pando.ErrInvalid) || !strings.Contains(err.Error(), "leave out --units") {
		t.Fatalf("got %v", err)
	}
}

func TestAGroupRefusesWhatMakesNoSense(t *testing.T) {
	if err := groupOf(t, "--unit-capacty", "20M"); codeOf(err) != 2 || !strings.Contains(err.Error(), "`pando fn run --units help`") {
		t.Errorf("a wrong flag: exit code %d: %v", codeOf(err), err)
	}
	if err := groupOf(t, "--out", "lo"); codeOf(err) != 3 || !strings.Contains(err.Error(), "leave --out away") {
		t.Errorf("one device twice: exit code %d: %v", codeOf(err), err)
	}
}
