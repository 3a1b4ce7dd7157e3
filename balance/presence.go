package balance

import (
	"hash/fnv"
	"strings"
)

// LeaveOut returns the dead hosts, which get no new flows. takers has a host for every instance
// that takes new flows. If all of them are dead, none is left out: a verdict may be wrong, and a
// service without instances is worse than one with doubtful instances.
func LeaveOut(takers []string, dead map[string]bool) map[string]bool {
	out := map[string]bool{}
	remains := false
	for _, h := range takers {
		if dead[h] {
			out[h] = true
		} else {
			remains = true
		}
	}
	if !remains {
		return nil
	}
	return out
}

// Holder returns the host that answers for an address on its network: the candidate with the
// highest hash of both names (rendezvous hashing: Thaler and Ravishankar, 1998). When a host
// leaves, only its own addresses move, and they spread over the others. Every host computes the
// same from the same candidates, in any order. Without candidates the result is "".
func Holder(address string, candidates []string) (holder string) {
	var highest uint64
	for _, c := range candidates {
		h := fnv.New64a()
		h.Write([]byte(c))
		h.Write([]byte{0})
		h.Write([]byte(address))
		weight := mix(h.Sum64())
		if holder == "" || weight > highest || weight == highest && strings.Compare(c, holder) < 0 {
			holder, highest = c, weight
		}
	}
	return holder
}
