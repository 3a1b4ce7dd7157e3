package nearest

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// A known word is its own guess, one slip is forgiven, and a guess is always a known word.
func TestAGuessIsAKnownWordNearby(t *testing.T) {
	word := rapid.StringMatching(`[a-z_]{4,12}`)
	rapid.Check(t, func(t *rapid.T) {
		known := rapid.SliceOfNDistinct(word, 1, 8, rapid.ID).Draw(t, "known")
		meant := rapid.SampledFrom(known).Draw(t, "meant")
		typed := []byte(meant)
		at := rapid.IntRange(0, len(typed)-1).Draw(t, "at")
		switch rapid.IntRange(0, 3).Draw(t, "slip") {
		case 0:
			typed[at] = 'q'
		case 1:
			typed = slices.Delete(typed, at, at+1)
		case 2:
			typed = slices.Insert(typed, at, 'q')
		default:
			next := min(at+1, len(typed)-1)
			typed[at], typed[next] = typed[next], typed[at]
		}
		got := Word(string(typed), known)
		if !slices.Contains(known, got) {
			t.Fatalf("%q is guessed as %q, which is not in %q", typed, got, known)
		}
		if len(known) == 1 && got != meant {
			t.Fatalf("%q is guessed as %q, want %q", typed, got, meant)
		}
		if n := slips(string(typed), meant); n > 1 {
			t.Fatalf("%q and %q are %d slips apart, want at most 1", typed, meant, n)
		}
	})
}

// slips is a distance: zero for equal words only, and the same in both directions.
func TestSlipsAreADistance(t *testing.T) {
	word := rapid.StringMatching(`[abc]{0,6}`)
	rapid.Check(t, func(t *rapid.T) {
		a, b := word.Draw(t, "a"), word.Draw(t, "b")
		n, back := slips(a, b), slips(b, a)
		if n != back || (n == 0) != (a == b) || n > max(len(a), len(b)) || n < len(a)-len(b) {
			t.Fatalf("%q to %q is %d, back %d", a, b, n, back)
		}
	})
}
