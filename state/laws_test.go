package state

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pando.run/pando"
)

// The laws of the merges that a type promises. `base` is the last common version; a and b grew from
// it.

// mergers are the types of paths where the result depends on neither the order nor the number of
// merges.
var mergers = map[string]struct {
	merge func(base, ours, theirs []byte) []byte
	draw  func(t *rapid.T, label string) []byte
}{
	"counter": {mergeCounter, drawNumber},
	"set":     {mergeSet, drawSet},
}

// drawNumber draws a counter: small, huge, negative, with space around it, or none.
func drawNumber(t *rapid.T, label string) []byte {
	return []byte(rapid.OneOf(
		rapid.StringMatching(`-?[1-9][0-9]{0,3}`), rapid.StringMatching(`-?[1-9][0-9]{40}`),
		rapid.SampledFrom([]string{"", "0", " 7\n", "many", "1.5", "+3", "0x10"}),
	).Draw(t, label))
}

// drawSet draws a set as a merge writes it.
func drawSet(t *rapid.T, label string) []byte {
	in := rapid.SliceOfDistinct(rapid.SampledFrom(
		[]string{"a", "b", "c", "a b", "ä", "+x", "-x", "zzzz"}), rapid.ID).Draw(t, label)
	m := map[string]bool{}
	for _, v := range in {
		m[v] = true
	}
	return setOf(m)
}

// laws runs a check for every merger.
func laws(t *testing.T, check func(
	t *rapid.T, merge func(base, ours, theirs []byte) []byte, draw func(label string) []byte,
)) {
	for name, m := range mergers {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				check(rt, m.merge, func(label string) []byte { return m.draw(rt, label) })
			})
		})
	}
}

func TestMergesCommute(t *testing.T) {
	laws(t, func(
		t *rapid.T, merge func(base, ours, theirs []byte) []byte, draw func(string) []byte,
	) {
		base, a, b := draw("base"), draw("a"), draw("b")
		one, other := merge(base, a, b), merge(base, b, a)
		if string(one) != string(other) {
			t.Fatalf("%q from %q: a into b is %q, b into a is %q", []string{string(a), string(b)},
				base, other, one)
		}
	})
}

// The order in which three branches reach main does not matter.
func TestMergesAssociate(t *testing.T) {
	laws(t, func(
		t *rapid.T, merge func(base, ours, theirs []byte) []byte, draw func(string) []byte,
	) {
		base, a, b, c := draw("base"), draw("a"), draw("b"), draw("c")
		left := merge(base, merge(base, a, b), c)
		right := merge(base, a, merge(base, b, c))
		if string(left) != string(right) {
			t.Fatalf("(%q + %q) + %q from %q is %q, and %q in the other order", a, b, c, base, left,
				right)
		}
	})
}

// A side without a change adds nothing, and the other side's change arrives whole.
func TestASideWithoutAChangeIsNeutral(t *testing.T) {
	laws(t, func(
		t *rapid.T, merge func(base, ours, theirs []byte) []byte, draw func(string) []byte,
	) {
		base, a := draw("base"), draw("a")
		normal := merge(nil, nil, a) // a as a merge writes it
		if string(merge(base, a, base)) != string(normal) {
			t.Fatalf("%q from %q: an unchanged branch makes it %q", a, base, merge(base, a, base))
		}
		if string(merge(base, base, a)) != string(normal) {
			t.Fatalf("%q from %q: an unchanged main makes it %q", a, base, merge(base, base, a))
		}
	})
}

// After a merge the branch lives on from the merged version: the same push again changes nothing.
func TestAMergedChangeIsMergedOnce(t *testing.T) {
	laws(t, func(
		t *rapid.T, merge func(base, ours, theirs []byte) []byte, draw func(string) []byte,
	) {
		base, ours, theirs := draw("base"), draw("ours"), draw("theirs")
		merged := merge(base, ours, theirs)
		again := merge(theirs, merged, theirs) // the base has advanced to theirs
		if string(again) != string(merged) {
			t.Fatalf("%q after the merge, %q after the same push again", merged, again)
		}
	})
}

// A number of any text is a number, and its text reads as the same number.
func TestACounterIsAlwaysANumber(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := []byte(rapid.String().Draw(t, "text"))
		n := number(text)
		if again := number([]byte(n.String())); again.Cmp(n) != 0 {
			t.Fatalf("%q is %s, then %s", text, n, again)
		}
	})
	for text, want := range map[string]string{
		"": "0", "7": "7", " 7\n": "7", "-3": "-3", "+3": "3", "x": "0", "1.5": "0", "1 2": "0",
		strings.Repeat("9", numberBytesMax):   strings.Repeat("9", numberBytesMax),
		strings.Repeat("9", numberBytesMax+1): "0",
	} {
		if got := number([]byte(text)).String(); got != want {
			t.Errorf("%.20q: %.20s, want %.20s", text, got, want)
		}
	}
}

// Branches that only add reach the same main in any order of their pushes.
func TestTheOrderOfPushesDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(2, 5).Draw(rt, "branches")
		adds := rapid.SliceOfN(rapid.IntRange(-9, 9), n, n).Draw(rt, "adds")
		tags := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c"}), n, n).Draw(rt, "tags")
		numbers := make([]int, n)
		for k := range n {
			numbers[k] = k
		}
		orders := [][]int{numbers, rapid.Permutation(numbers).Draw(rt, "order")}
		var found []string
		for _, order := range orders {
			r := Open(newMemory(), web, typed)
			var main pando.ObjectID
			branches := make([]*Branch, n)
			for k := range n {
				branches[k] = must(r.Born(t.Context(), pando.InstanceID(fmt.Sprint("i", k)), main))
				do(branches[k].Patch("hits", []byte(fmt.Sprint(adds[k]))))
				do(branches[k].Patch("tags", []byte("+"+tags[k])))
				do(branches[k].Patch("log", []byte(fmt.Sprint("line of ", k))))
			}
			for step, k := range order {
				push(branches[k], &main, t0.Add(time.Duration(step)*time.Second))
			}
			lines := strings.Fields(strings.ReplaceAll(text(r, main, "log"), "line of ", ""))
			slices.Sort(lines)
			found = append(found, fmt.Sprint(text(r, main, "hits"), text(r, main, "tags"), lines))
		}
		if found[0] != found[1] {
			rt.Fatalf("in the orders %v: %q", orders, found)
		}
	})
}

// A push without a change, and a pull of a main that the branch has, change no object of main.
func TestNothingNewMovesNothing(t *testing.T) {
	r := Open(newMemory(), web, typed)
	var main pando.ObjectID
	b := must(r.Born(t.Context(), "a", main))
	do(b.Patch("hits", []byte("3")))
	push(b, &main, t0)
	before := main
	for step := range 3 {
		at := t0.Add(time.Duration(step+1) * time.Minute)
		must(b.Pull(t.Context(), main, at))
		push(b, &main, at)
		if text(r, main, "hits") != "3" {
			t.Fatalf("main has %s hits after %d idle pushes", text(r, main, "hits"), step+1)
		}
	}
	if main != before {
		t.Errorf("main moved from %s to %s without a change", before, main)
	}
}
