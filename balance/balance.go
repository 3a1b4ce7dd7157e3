// Package balance turns weights into the buckets of a steering table.
//
// It never touches a packet or a map. It is a function from the endpoints that take new flows to
// the owner of each bucket.
package balance

import (
	"hash/fnv"
	"slices"
	"strings"
)

// Buckets fills a table of size buckets (a power of two, or a prime) with indices into ids, each in
// proportion to its weight. A change of one endpoint moves few buckets of the others (weighted
// Maglev: Eisenbud et al., NSDI 2016, §3.4). An endpoint of weight 0 gets none. Without any weight
// the answer is nil. The result does not depend on the order of ids.
func Buckets(ids []string, weights []int, size int) []uint16 {
	heaviest := 0
	for _, w := range weights {
		heaviest = max(heaviest, w)
	}
	if heaviest == 0 || size < 2 {
		return nil
	}
	order := make([]int, 0, len(ids))
	for n := range ids {
		if weights[n] > 0 {
			order = append(order, n)
		}
	}
	slices.SortFunc(order, func(a, b int) int { return strings.Compare(ids[a], ids[b]) })
	claims := make([]claim, len(order))
	for n, at := range order {
		claims[n] = newClaim(at, ids[at], weights[at], size)
	}
	out, taken := make([]uint16, size), make([]bool, size)
	full, last := int32(heaviest), int32(size)
	for filled := 0; ; {
		for n := range claims {
			c := &claims[n]
			if c.credit += c.weight; c.credit < full {
				continue
			}
			c.credit -= full
			at, skip := c.at, c.skip // in registers, because this loop takes nearly all of the time
			for taken[at] {
				if at += skip; at >= last {
					at -= last
				}
			}
			taken[at], out[at], c.at = true, c.index, at
			if filled++; filled == size {
				return out
			}
		}
	}
}

// claim is one endpoint's order of preference over the buckets: at, at + skip, ... It is small
// because the loop visits all claims in turn.
type claim struct {
	at, skip       int32
	weight, credit int32
	index          uint16
}

func newClaim(index int, id string, weight, size int) claim {
	h := fnv.New64a()
	h.Write([]byte(id))
	a := mix(h.Sum64())
	b := mix(a ^ 0x9E3779B97F4A7C15)
	c := claim{index: uint16(index), weight: int32(weight), at: int32(a % uint64(size)),
		skip: int32(b%uint64(size-1)) + 1}
	if size&(size-1) == 0 {
		c.skip |= 1 // an odd one visits every bucket
	}
	return c
}

func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
