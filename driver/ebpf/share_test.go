package ebpf

import (
	"testing"

	"pando.run/pando"
)

// endpoints returns a table with an endpoint that takes flows, and one that will soon.
func endpoints(second int) pando.SteeringTable {
	return pando.SteeringTable{
		Service: pando.DefaultService("web"),
		Endpoints: []pando.Endpoint{
			{Instance: "web-1", Weight: 1},
			{Instance: "web-2", Weight: second, Soon: 3},
		},
	}
}

// A caller waits for a publication, so a foreseen share is not computed again.
func TestAForeseenShareIsComputedOnce(t *testing.T) {
	computed := 0
	s := newShares(func([]string, []int, int) []uint16 {
		computed++
		return []uint16{0}
	})
	now := s.of(endpoints(0))
	s.enforce(pando.DefaultService("web"), now)
	s.foresee(endpoints(0))
	if computed != 2 {
		t.Fatalf("%d shares were computed for the table and the next one, want 2", computed)
	}
	if s.of(endpoints(0)) != now || s.of(endpoints(3)) == now || computed != 2 {
		t.Errorf("a known share was computed again: %d, want 2", computed)
	}
	if s.of(endpoints(4)); computed != 3 {
		t.Errorf("%d shares were computed after a new weight, want 3", computed)
	}
	s.forget(pando.DefaultService("web"))
	if s.of(endpoints(0)); computed != 4 {
		t.Errorf("%d shares were computed after forget, want 4", computed)
	}
}

// The publisher does not write a share with slots again. A share out of force has to be written.
func TestAShareOutOfForceHasNoSlots(t *testing.T) {
	s := newShares(func([]string, []int, int) []uint16 { return []uint16{0} })
	first, second := s.of(endpoints(0)), s.of(endpoints(3))
	first.slots = []uint32{1, 2}
	s.enforce(pando.DefaultService("web"), first)
	s.enforce(pando.DefaultService("web"), first)
	if first.slots == nil {
		t.Error("the share in force lost its slots")
	}
	s.enforce(pando.DefaultService("web"), second)
	if first.slots != nil {
		t.Errorf("the former share still has the slots %v", first.slots)
	}
}
