package pando

import (
	"errors"
	"slices"
	"testing"
)

func TestAMachineHasDefaultsAndBounds(t *testing.T) {
	s := Spec{Kind: KindVM, VM: VM{Kernel: "/k", Disk: "/d"}}.WithDefaults()
	if s.VM.MemoryBytes != VMMemoryBytes || s.VM.CPUs != 1 ||
		s.Resources.MemoryBytes != VMMemoryBytes+VMOverheadBytes {
		t.Errorf("%+v, %d bytes", s.VM, s.Resources.MemoryBytes)
	}
	if err := s.VM.Check(); err != nil || !slices.Equal(s.VM.Files(), []string{"/k", "/d"}) {
		t.Errorf("%v, %v", err, s.VM.Files())
	}
	for _, change := range []func(*VM){
		func(v *VM) { v.Kernel = "" }, func(v *VM) { v.MemoryBytes = 1 }, func(v *VM) { v.CPUs = 65 },
		func(v *VM) { v.Append = "a\nb" },
	} {
		v := s.VM
		change(&v)
		if err := v.Check(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", v, err)
		}
	}
}
