package ebpf

import (
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"pando.run/pando"
)

// block is a taken block of a slab.
type block struct{ first, size int }

// Blocks never overlap, a slab that is empty again has room for the largest block, and an allocator
// that claims all taken blocks continues like the former one.
func TestBlocksNeverOverlap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b, owner := newSlabBlocks(), map[int]block{}
		taken := []block{}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			if len(taken) > 0 && rapid.IntRange(0, 2).Draw(t, "give") == 0 {
				n := rapid.IntRange(0, len(taken)-1).Draw(t, "which")
				b.give(taken[n].first, taken[n].size)
				for at := range taken[n].size {
					delete(owner, taken[n].first+at)
				}
				taken = append(taken[:n], taken[n+1:]...)
				continue
			}
			size := 1 << rapid.IntRange(0, 12).Draw(t, "size")
			first, ok := b.take(size)
			if !ok {
				if len(taken) == 0 {
					t.Fatalf("an empty slab has no block of %d chunks", size)
				}
				continue
			}
			if first%size != 0 || first < 0 || first+size > slabChunks {
				t.Fatalf("a block of %d chunks begins at %d", size, first)
			}
			for at := range size {
				if was, ok := owner[first+at]; ok {
					t.Fatalf("chunk %d is part of %v and of a new block", first+at, was)
				}
				owner[first+at] = block{first, size}
			}
			taken = append(taken, block{first, size})
		}
		again := newSlabBlocks()
		for _, k := range taken {
			if err := again.claim(k.first, k.size); err != nil {
				t.Fatal(err)
			}
		}
		if again.free != b.free {
			t.Fatal("an allocator that claims the taken blocks has other free ones")
		}
		for _, k := range taken {
			b.give(k.first, k.size)
		}
		if !b.isEmpty() {
			t.Fatal("chunks are lost")
		}
	})
}

func TestABlockIsClaimedOnce(t *testing.T) {
	b := newSlabBlocks()
	if err := b.claim(8, 8); err != nil {
		t.Fatal(err)
	}
	for _, k := range []block{{8, 8}, {8, 4}, {0, 16}, {0, slabChunks}, {4, 8}, {0, 3}, {-8, 8},
		{slabChunks, 8}, {0, 0}, {0, 2 * slabChunks}} {
		t.Run(fmt.Sprint(k), func(t *testing.T) {
			if err := b.claim(k.first, k.size); !errors.Is(err, pando.ErrInvalid) {
				t.Errorf("it is claimed: %v", err)
			}
		})
	}
	b.give(0, 8) // is free
	b.give(3, 8) // cannot be a block
	if first, ok := b.take(8); !ok || first != 0 {
		t.Errorf("the next block is at %d, %t; want 0", first, ok)
	}
	if _, ok := b.take(3); ok {
		t.Error("a block of 3 chunks")
	}
}
