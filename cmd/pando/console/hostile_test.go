package console

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// Sizes have at most four characters and their unit, and grow with the number.
func TestSizesKeepTheirWidthAndOrder(t *testing.T) {
	value := func(text string) float64 {
		var v float64
		var unit string
		if _, err := fmt.Sscanf(text, "%g%1s", &v, &unit); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		for range strings.Index("BKMGT", unit) {
			v *= 1024
		}
		return v
	}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(0, 999<<40).Draw(t, "bytes")
		if rapid.Bool().Draw(t, "small") {
			n >>= rapid.IntRange(0, 49).Draw(t, "shift")
		}
		text := Bytes(n)
		if utf8.RuneCountInString(text) > 5 {
			t.Fatalf("%d bytes are %q", n, text)
		}
		if got := value(text); got < 0.94*float64(n) || got > 1.06*float64(n) {
			t.Fatalf("%d bytes are %q, which is %g", n, text, got)
		}
	})
}
