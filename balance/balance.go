// Package balance turns weights into the buckets of a steering table.
//
// It never touches a packet or a map: it is a function from who takes new flows to which bucket is whose.
package balance

import (
	"hash/fnv"
	"slices"
	"strings"
)

// Buckets fills a table of size buckets (a prime) with indices into ids, each in proportion to its weight, so that a
// change of one endpoint moves few buckets of the others (weighted Maglev: Eisenbud et al., NSDI 2016, §3.4). An endpoint
// of weight 0 gets none; without any weight the answer is nil. The result does not depend on the order of ids.
func Buckets(ids []string, weights []int, size int) []uint16 {
	heaviest := 0
	for _, w := range weights {
		heaviest = max(heaviest, w)
	}
	if heaviest == 0 || size < 2 {
		return nil
	}
	claims := make([]claim, 0, len(ids))
	for n, id := range ids {
		if weights[n] > 0 {
			claims = append(claims, newClaim(uint16(n), id, weights[n], size))
		}
	}
	slices.SortFunc(claims, func(a, b claim) int { return strings.Compare(a.id, b.id) })
	out := make([]uint16, size)
	taken := make([]bool, size)
	for filled := 0; ; {
		for n := range claims {
			c := &claims[n]
			if c.credit += c.weight; c.credit < heaviest {
				continue
			}
			c.credit -= heaviest
			at := c.next(size)
			for taken[at] {
				at = c.next(size)
			}
			taken[at], out[at] = true, c.index
			if filled++; filled == size {
				return out
			}
		}
	}
}

// claim is one endpoint's order of preference over the buckets.
type claim struct {
	index  uint16
	id     string
	weight int
	credit int
	at     uint64
	skip   uint64
}

func newClaim(index uint16, id string, weight, size int) claim {
	h := fnv.New64a()
	h.Write([]byte(id))
	a := mix(h.Sum64())
	b := mix(a ^ 0x9E3779B97F4A7C15)
	return claim{index: index, id: id, weight: weight, at: a % uint64(size), skip: b%uint64(size-1) + 1}
}

func (c *claim) next(size int) int {
	at := c.at
	c.at = (c.at + c.skip) % uint64(size)
	return int(at)
}

func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
