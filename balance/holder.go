package balance

import (
	"hash/fnv"

	"pando.run/pando/edge"
)

// Holders returns the host that answers for each share of the VIPs on a network: the one with the
// highest hash of its name and the share (rendezvous hashing). The end of a host moves its own
// shares alone. A new host takes an equal part of each other's. Without hosts, each holder is "".
func Holders(hosts []string) (of [edge.VIPShares]string) {
	var best [edge.VIPShares]uint64
	for _, h := range hosts {
		sum := fnv.New64a()
		_, _ = sum.Write([]byte(h)) // it never fails
		seed := sum.Sum64()
		for n := range of {
			weight := mix(seed ^ uint64(n)*0x9e3779b97f4a7c15)
			if of[n] == "" || weight > best[n] || weight == best[n] && h < of[n] {
				of[n], best[n] = h, weight
			}
		}
	}
	return of
}

// MayAnswer reports whether a host may answer for VIPs: it finds at most half of the hosts of its
// network dead. The smaller side of a cut network so falls silent when the larger one takes over.
// Either half answers, because the end of one of two hosts looks the same.
func MayAnswer(hosts, dead int) bool { return 2*(hosts-dead) >= hosts }
