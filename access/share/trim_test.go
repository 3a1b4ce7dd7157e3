package share

import (
	"slices"
	"testing"
)

// An owner within its part of a bound keeps all its pieces, although another owner floods the list.
func TestTrimTakesFromTheOwnerWithTheMost(t *testing.T) {
	small := Piece[string]{"bank", 10}
	flood := slices.Repeat([]Piece[string]{{"acme", 10}}, 20)
	for _, test := range []struct {
		name   string
		pieces []Piece[string]
		most   int64
		gone   []int
	}{
		{"within the bound", []Piece[string]{small, small}, 20, nil},
		{"the flood pays", append([]Piece[string]{small}, flood...), 190, []int{1, 2}},
		{"equals go in turn", []Piece[string]{{"acme", 5}, {"bank", 5}, {"acme", 5}, {"bank", 5}}, 10, []int{0, 1}},
		{"everything", []Piece[string]{{"acme", 5}, {"bank", 7}}, -1, []int{1, 0}},
		{"pieces of no size", []Piece[string]{{"acme", 0}, {"bank", 0}}, -1, []int{0, 1}},
	} {
		if gone := slices.Collect(Trim(test.pieces, test.most)); !slices.Equal(gone, test.gone) {
			t.Errorf("%s: %v go, want %v", test.name, gone, test.gone)
		}
	}
}

// A list keeps its order, and the newest entries of the owner with the most.
func TestNewestKeepsTheEntriesOfOthers(t *testing.T) {
	list := []string{"b1", "a1", "a2", "a3", "c1"}
	owner := func(e string) byte { return e[0] }
	for most, want := range map[int][]string{5: list, 4: {"b1", "a2", "a3", "c1"}, 3: {"b1", "a3", "c1"}, 0: nil} {
		if got := Newest(slices.Clone(list), most, owner); !slices.Equal(got, want) {
			t.Errorf("of %d stay %v, want %v", most, got, want)
		}
	}
}
