package main

import (
	"errors"
	"io"
	"strings"
	"testing"

	"pando.run/pando"
)

// Units of a group meet steering in rings of AF_PACKET; who asks for another way is told before anything is made.
func TestAGroupRefusesAFXDP(t *testing.T) {
	args := []string{"nat.wasm", "--iface", "lo", "--units", "1..2", "--port", "xdp"}
	err := runGroup(t.Context(), Env{Stdout: io.Discard, Stderr: io.Discard}, "pando-unit", args)
	if !errors.Is(err, pando.ErrInvalid) || !strings.Contains(err.Error(), "leave out --units") {
		t.Fatalf("got %v", err)
	}
}
