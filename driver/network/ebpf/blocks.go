package ebpf

import (
	"fmt"
	"math/bits"

	"pando.run/pando"
)

const slabChunks = 4096 // bpf/pando.h

// slabBlocks hands out blocks of one slab's chunks (a buddy allocator). The size of a block is a
// power of two, and its first chunk is a multiple of its size.
//
// free is a complete binary tree: free[0] stands for the whole slab, and free[2n+1] and free[2n+2]
// for the halves of n. Its value is the largest free block below n.
type slabBlocks struct {
	free [2*slabChunks - 1]uint16
}

func newSlabBlocks() *slabBlocks {
	b := &slabBlocks{}
	for n := range b.free {
		b.free[n] = uint16(slabChunks >> (bits.Len(uint(n+1)) - 1))
	}
	return b
}

// isEmpty reports whether no block is taken.
func (b *slabBlocks) isEmpty() bool { return b.free[0] == slabChunks }

// take takes the first free block of a size. ok is false if there is none.
func (b *slabBlocks) take(size int) (first int, ok bool) {
	if size < 1 || size&(size-1) != 0 || int(b.free[0]) < size {
		return 0, false
	}
	n := 0
	for at := slabChunks; at > size; at /= 2 {
		if n = 2*n + 1; int(b.free[n]) < size {
			n++
		}
	}
	first = (n+1)*size - slabChunks
	b.free[n] = 0
	b.update(n, size)
	return first, true
}

// claim takes a certain block: one that a former agent took.
func (b *slabBlocks) claim(first, size int) error {
	n, err := node(first, size)
	if err != nil {
		return err
	}
	for at := n; ; at = (at - 1) / 2 {
		if b.free[at] == 0 || at == n && int(b.free[n]) != size {
			return fmt.Errorf("%w: two tables have chunk %d", pando.ErrInvalid, first)
		}
		if at == 0 {
			break
		}
	}
	b.free[n] = 0
	b.update(n, size)
	return nil
}

// give returns a taken block.
func (b *slabBlocks) give(first, size int) {
	n, err := node(first, size)
	if err != nil || b.free[n] != 0 {
		return
	}
	b.free[n] = uint16(size)
	b.update(n, size)
}

// node returns the place of a block in the tree.
func node(first, size int) (int, error) {
	if size < 1 || size > slabChunks || size&(size-1) != 0 || first < 0 || first%size != 0 ||
		first+size > slabChunks {
		return 0, fmt.Errorf("%w: no table has %d chunks from chunk %d", pando.ErrInvalid, size, first)
	}
	return (first+slabChunks)/size - 1, nil
}

// update corrects the parents of a node that stands for size chunks.
func (b *slabBlocks) update(n, size int) {
	for n > 0 {
		n, size = (n-1)/2, 2*size
		left, right := b.free[2*n+1], b.free[2*n+2]
		b.free[n] = max(left, right)
		if int(left)+int(right) == size {
			b.free[n] = uint16(size)
		}
	}
}
