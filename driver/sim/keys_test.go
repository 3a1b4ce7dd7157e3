package sim

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"pando.run/pando"
)

// The keys under a prefix are those that a sorted list has, after any order of changes.
func TestKeysInPagesAreThoseOfASortedList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var got keys
		want := map[pando.Key]bool{}
		for range rapid.IntRange(0, 6).Draw(t, "parts") {
			n, drop := rapid.IntRange(1, pageMax).Draw(t, "keys"), rapid.Bool().Draw(t, "drop")
			name := rapid.StringOfN(rapid.RuneFrom([]rune("ab/")), 1, 12, -1)
			for range n {
				if k := pando.Key(name.Draw(t, "key")); drop {
					delete(want, k)
					got.drop(k)
				} else {
					want[k] = true
					got.add(k)
				}
			}
		}
		prefix := pando.Key(rapid.StringMatching("[ab/]{0,3}").Draw(t, "prefix"))
		var list []pando.Key
		for k := range want {
			if strings.HasPrefix(string(k), string(prefix)) {
				list = append(list, k)
			}
		}
		slices.Sort(list)
		if all := slices.Collect(got.under(prefix)); !slices.Equal(all, list) {
			t.Fatalf("under %q are %v, want %v", prefix, all, list)
		}
		for _, p := range got.pages {
			if len(p) == 0 || len(p) > pageMax {
				t.Fatalf("a page has %d keys", len(p))
			}
		}
	})
}
