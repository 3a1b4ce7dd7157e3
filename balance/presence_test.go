package balance

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestADeadHostIsLeftOutUnlessItIsTheLast(t *testing.T) {
	dead := func(names ...string) map[string]bool {
		m := map[string]bool{}
		for _, n := range names {
			m[n] = true
		}
		return m
	}
	for name, c := range map[string]struct {
		takers []string
		dead   map[string]bool
		want   map[string]bool
	}{
		"all alive":          {[]string{"a", "b"}, dead(), dead()},
		"one dead":           {[]string{"a", "b", "b"}, dead("b"), dead("b")},
		"the only one":       {[]string{"a"}, dead("a"), nil},
		"all dead":           {[]string{"a", "b"}, dead("a", "b"), nil},
		"dead, no instances": {[]string{"a"}, dead("b"), dead()},
		"no instances":       {nil, dead("a"), nil},
	} {
		if got := LeaveOut(c.takers, c.dead); !maps.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// With any dead hosts, a service with takers keeps one, and only dead hosts are left out.
func TestAServiceKeepsAnInstanceThatTakesFlows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		host := rapid.SampledFrom([]string{"a", "b", "c", "d", "e"})
		takers := rapid.SliceOfN(host, 1, 12).Draw(t, "takers")
		dead := rapid.MapOf(host, rapid.Just(true)).Draw(t, "dead")
		out := LeaveOut(takers, dead)
		if !slices.ContainsFunc(takers, func(h string) bool { return !out[h] }) {
			t.Fatalf("of %v all are left out", takers)
		}
		for h := range out {
			if !dead[h] {
				t.Fatalf("%s lives and is left out", h)
			}
		}
	})
}

// When a host leaves, only its addresses move. When it returns, they all return to it.
func TestOnlyTheAddressesOfALostHostMove(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		hosts := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z]{1,6}[0-9]{0,3}`), 2, 20,
			rapid.ID[string]).Draw(t, "hosts")
		lost := rapid.SampledFrom(hosts).Draw(t, "lost")
		rest := slices.DeleteFunc(slices.Clone(hosts), func(h string) bool { return h == lost })
		for n := range 64 {
			vip := fmt.Sprintf("10.127.1.%d", n)
			before, after := Holder(vip, hosts), Holder(vip, rest)
			if before != lost && after != before {
				t.Fatalf("%s moved from %s to %s as %s left", vip, before, after, lost)
			}
			if after == lost || !slices.Contains(rest, after) {
				t.Fatalf("%s went to %q", vip, after)
			}
			shuffled := slices.Clone(hosts)
			rand.Shuffle(len(shuffled), func(i, j int) {
				shuffled[i], shuffled[j] = shuffled[j], shuffled[i]
			})
			if again := Holder(vip, shuffled); again != before {
				t.Fatalf("in another order %s is held by %s, not %s", vip, again, before)
			}
		}
	})
	if h := Holder("10.127.1.1", nil); h != "" {
		t.Errorf("without candidates it is %q", h)
	}
}

// 10,000 addresses spread evenly over hosts with similar names, and the death of one spreads its
// addresses over all others.
func TestAddressesSpreadEvenly(t *testing.T) {
	var hosts []string
	for n := range 10 {
		hosts = append(hosts, fmt.Sprintf("host%d", n+1))
	}
	held, taken := map[string]int{}, map[string]int{}
	for n := range 10_000 {
		vip := fmt.Sprintf("10.127.%d.%d", n>>8, n&255)
		h := Holder(vip, hosts)
		if held[h]++; h == hosts[3] {
			taken[Holder(vip, slices.Delete(slices.Clone(hosts), 3, 4))]++
		}
	}
	for _, h := range hosts {
		if held[h] < 900 || held[h] > 1100 {
			t.Errorf("%s holds %d of 10,000", h, held[h])
		}
	}
	if len(taken) != 9 {
		t.Errorf("the addresses of one went to %d of 9 hosts", len(taken))
	}
}
