package balance

import (
	"maps"
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
