package main

import (
	"bytes"
	"testing"
)

func TestObservationsAreWrittenInOrder(t *testing.T) {
	var out bytes.Buffer
	observe(&out, map[string]func() map[string]string{
		"b": func() map[string]string { return map[string]string{"x": "two\nlines"} },
		"a": func() map[string]string { return map[string]string{"z": "1", "y": "0"} },
	})
	if got := out.String(); got != "a/y\t0\na/z\t1\nb/x\ttwo | lines\n" {
		t.Errorf("it writes %q", got)
	}
}
