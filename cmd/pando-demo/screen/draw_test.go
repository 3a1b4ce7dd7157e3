package screen

import (
	"strings"
	"testing"
)

func TestAStripShowsTheHighestOfEachShare(t *testing.T) {
	if got := bars([]float64{0, 1, 8, 1, 0, 4}, 3); got != "▁█▄" {
		t.Fatalf("six values in three cells are %q", got)
	}
	if got := bars(nil, 4); got != "    " {
		t.Fatalf("no values are %q", got)
	}
}

func TestNoLineIsLongerThanTheScreen(t *testing.T) {
	for _, line := range strings.Split(Tail([]string{"a", "äöüäöüäöü", "0123456789"}, 2, 8), "\n") {
		if n := len([]rune(line)); n > 8 {
			t.Errorf("%q has %d cells", line, n)
		}
	}
	if got := Tail([]string{"1", "2", "3"}, 2, 8); got != "2\n3\n" {
		t.Errorf("the last two are %q", got)
	}
}
