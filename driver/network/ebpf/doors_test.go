package ebpf

import (
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestArrangeNeverMissesAMember makes random changes of a list. A member of the old and the new
// list is in the table at every moment, and the numbers have no gap.
func TestArrangeNeverMissesAMember(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	table := map[uint32]int{}
	var list []int
	full := errors.New("the table is full")
	for range 2000 {
		var want []int
		for v := range 12 {
			if random.IntN(2) == 0 {
				want = append(want, v)
			}
		}
		var stay []int
		for _, v := range list {
			if slices.Contains(want, v) {
				stay = append(stay, v)
			}
		}
		look := func() {
			t.Helper()
			for n := range uint32(len(table)) {
				if _, ok := table[n]; !ok {
					t.Fatalf("number %d is missing in %v", n, table)
				}
			}
			here := slices.Collect(maps.Values(table))
			for _, v := range stay {
				if !slices.Contains(here, v) {
					t.Fatalf("%d is missing in %v", v, table)
				}
			}
		}
		var fail error
		if random.IntN(10) == 0 {
			fail = full
		}
		now, err := arrange(list, want, func(n uint32, v int) error {
			defer look()
			if _, ok := table[n]; !ok && fail != nil {
				return fail
			}
			table[n] = v
			return nil
		}, func(n uint32) error { defer look(); delete(table, n); return nil })
		list = now
		inTable := make([]int, len(table))
		for n, v := range table {
			inTable[n] = v
		}
		if !slices.Equal(inTable, list) {
			t.Fatalf("the table is %v, the list %v", inTable, list)
		}
		slices.Sort(inTable)
		if err == nil && !slices.Equal(inTable, want) {
			t.Fatalf("the table has %v, want %v", inTable, want)
		}
	}
}
