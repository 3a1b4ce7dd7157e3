package balance

import (
	"fmt"
	"slices"
	"testing"

	"pando.run/pando/edge"
)

func hostNames(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("host%d", i+1))
	}
	return all
}

// Each host holds its part, in any order of the hosts.
func TestHostsShareTheVIPs(t *testing.T) {
	for _, hosts := range []int{1, 2, 3, 10, 100} {
		all := hostNames(hosts)
		of := Holders(all)
		slices.Reverse(all)
		if Holders(all) != of {
			t.Errorf("%d hosts: the order counts", hosts)
		}
		parts := map[string]int{}
		for _, h := range of {
			parts[h]++
		}
		if most := 3*edge.VIPShares/hosts + 5; len(parts) < hosts*3/5 || parts[all[0]] > most {
			t.Errorf("%d hosts: %d of them hold shares, %s has %d", hosts, len(parts), all[0],
				parts[all[0]])
		}
	}
	if of := Holders(nil); of[7] != "" {
		t.Errorf("without hosts, %q holds a share", of[7])
	}
}

// A host that ends moves its own shares alone; when it returns, it gets the same ones back.
func TestTheEndOfAHostMovesItsOwnSharesAlone(t *testing.T) {
	all := hostNames(7)
	before := Holders(all)
	for gone := range all {
		after := Holders(slices.Delete(slices.Clone(all), gone, gone+1))
		for n := range before {
			if before[n] != all[gone] && after[n] != before[n] {
				t.Errorf("without %s, share %d moved from %s to %s", all[gone], n, before[n], after[n])
			}
			if after[n] == all[gone] {
				t.Errorf("%s still holds share %d", all[gone], n)
			}
		}
	}
}

func TestTheSmallerSideFallsSilent(t *testing.T) {
	for _, c := range []struct {
		hosts, dead int
		want        bool
	}{{1, 0, true}, {2, 1, true}, {3, 1, true}, {3, 2, false}, {4, 2, true}, {5, 3, false}} {
		if got := MayAnswer(c.hosts, c.dead); got != c.want {
			t.Errorf("%d of %d hosts dead: may answer = %v", c.dead, c.hosts, got)
		}
	}
}
