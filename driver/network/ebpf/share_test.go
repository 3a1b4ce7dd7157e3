package ebpf

import (
	"encoding/binary"
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

func TestATableGrowsWithItsService(t *testing.T) {
	for _, c := range []struct{ takers, now, want int }{
		{0, 0, 128}, {1, 0, 128}, {2, 0, 256}, {3, 0, 512}, {5, 512, 1024}, {100, 0, 16384},
		{1024, 0, 16384}, {1025, 0, 32768}, {4096, 0, 65536}, {4096, 16384, 65536},
		// It shrinks once a quarter is enough.
		{1, 256, 256}, {1, 512, 128}, {2, 512, 512}, {2, 1024, 256}, {1, 65536, 128},
	} {
		if got := bucketsFor(c.takers, c.now); got != c.want {
			t.Errorf("%d endpoints in a table of %d buckets get %d, want %d", c.takers, c.now, got, c.want)
		}
	}
	if bucketsFor(pando.EndpointsMax, 0) > slabChunks*chunkBuckets {
		t.Error("the largest table does not fit into a slab")
	}
}

// The tables of layout 1 become tables with the same shares, of another size.
func TestAResampledTableKeepsTheShares(t *testing.T) {
	raw := make([]byte, 2*16384)
	for n := range slots1 {
		binary.NativeEndian.PutUint16(raw[2*n:], uint16(20+n%3))
	}
	owners := ownersOf(raw)
	if len(owners) != slots1 || distinct(owners) != 3 {
		t.Fatalf("%d buckets of %d endpoints", len(owners), distinct(owners))
	}
	for _, size := range []int{128, 512, 16384} {
		got := map[uint16]int{}
		for _, o := range resample(owners, size) {
			got[o]++
		}
		for owner := range uint16(3) {
			if n := got[20+owner]; n < size/4 || n > size*5/12 {
				t.Errorf("endpoint %d has %d of %d buckets, want a third", 20+owner, n, size)
			}
		}
	}
}
