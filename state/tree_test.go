package state

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"pando.run/pando"
)

// names are few and are prefixes of each other, with bytes that sort before and after the '/' of a
// folder.
var names = []string{"a", "a!", "a-", "a-b", "a.", "a0", "aa", "b", "b.conflict-x",
	"b.conflict-x.conflict-x", "b0", "c"}

func someID(t *rapid.T) pando.ObjectID {
	return pando.ObjectID{byte(rapid.IntRange(1, 4).Draw(t, "id"))}
}

// someTree draws the entries of a folder, by name.
func someTree(t *rapid.T) map[string]entry {
	out := map[string]entry{}
	for _, name := range rapid.SliceOfDistinct(rapid.SampledFrom(names), rapid.ID[string]).Draw(t,
		"names") {
		out[name] = entry{name: name, tree: rapid.Bool().Draw(t, "folder"), id: someID(t)}
	}
	return out
}

func treeOf(of map[string]entry) tree {
	var body []byte
	for _, e := range slices.SortedFunc(maps.Values(of), compare) {
		body = e.add(body)
	}
	return read(body)
}

func TestATreeIsEditedInItsOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		was, now := someTree(t), someTree(t)
		var edits []entry
		rest := treeOf(was)
		for _, name := range names { // in the order of strings
			old, err := rest.seek(name)
			if err != nil || old != was[name] {
				t.Fatalf("%q is %+v, %v; want %+v", name, old, err, was[name])
			}
			edits = replaced(edits, old, now[name])
		}
		edits = rapid.Permutation(edits).Draw(t, "edits")
		got, splices, err := treeOf(was).edit(edits)
		if err != nil || string(got) != string(treeOf(now)) {
			t.Fatalf("edited %q into %q, %v; want %q", treeOf(was), got, err, treeOf(now))
		}
		if by := spliced([]byte(treeOf(was)), got, splices); !bytes.Equal(by, got) {
			t.Fatalf("by splices it is %q; want %q", by, got)
		}
		if all, err := read(got).entries(); err != nil || len(all) != len(now) {
			t.Fatalf("%d entries, %v; want %d", len(all), err, len(now))
		}
	})
}

// spliced applies the splices to base; the new bytes come from the same place in body.
func spliced(base, body []byte, splices []pando.Splice) (out []byte) {
	for _, s := range splices {
		out = append(out, base[:s.Keep]...)
		out = append(out, body[len(out):len(out)+s.Put]...)
		base = base[s.Keep+s.Drop:]
	}
	return append(out, base...)
}

func line(e entry) tree {
	if e.id.IsZero() {
		return ""
	}
	return read(e.add(nil))
}

func TestChangesAreWhatDiffers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		base, theirs := someTree(t), someTree(t)
		got, err := changes(treeOf(base), treeOf(theirs))
		if err != nil {
			t.Fatal(err)
		}
		var want []changed
		for _, name := range names {
			if base[name] != theirs[name] {
				want = append(want, changed{name: name, base: line(base[name]), theirs: line(theirs[name])})
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("from %q to %q: %+v; want %+v", treeOf(base), treeOf(theirs), got, want)
		}
	})
}

// A merge of folders with opaque values: no written value is lost, and no other value appears. A
// name that one side left alone has the other side's value. Every name that gets two values is a
// conflict.
func TestAMergeLosesNothing(t *testing.T) {
	types := newTypes(map[string]pando.StateType{"**": pando.StateOpaque})
	rapid.Check(t, func(t *rapid.T) {
		m := &merge{work: newWork(newMemory(), web), types: types, branch: "x"}
		var sides [3]map[string]entry
		var ids [3]pando.ObjectID
		for n := range sides {
			sides[n] = someFiles(t)
			ids[n] = m.put(pando.TreeObject, []byte(treeOf(sides[n])))
		}
		base, ours, theirs := sides[0], sides[1], sides[2]
		root, err := m.folders("", ids[0], ids[1], ids[2])
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]entry{}
		for _, e := range must(m.entries(root)) {
			got[e.name] = e
		}
		has := func(in map[string]entry, id pando.ObjectID) bool {
			return slices.ContainsFunc(slices.Collect(maps.Values(in)),
				func(e entry) bool { return e.id == id })
		}
		for name, e := range theirs {
			if e != base[name] && !has(got, e.id) {
				t.Fatalf("%q of theirs is lost: %q + %q on %q is %q",
					name, treeOf(ours), treeOf(theirs), treeOf(base), treeOf(got))
			}
		}
		for _, name := range names {
			o, b, g := ours[name], base[name], got[name]
			beside := strings.HasSuffix(name, conflictMark+"x")
			switch {
			case theirs[name] == b && g != o && !beside:
				t.Fatalf("%q is %+v, and theirs left it as it was: want %+v", name, g, o)
			case o == b && g != theirs[name] && !beside:
				t.Fatalf("%q is %+v, and ours left it as it was: want %+v", name, g, theirs[name])
			case !o.id.IsZero() && o != b && g != o && !beside:
				t.Fatalf("%q is %+v; ours wrote %+v", name, g, o)
			case o != b && theirs[name] != b && o != theirs[name] && !o.id.IsZero() &&
				!theirs[name].id.IsZero() != slices.Contains(m.result.Conflicts, name):
				t.Fatalf("conflicts are %q", m.result.Conflicts)
			}
		}
		for name, e := range got {
			if !has(ours, e.id) && !has(theirs, e.id) {
				t.Fatalf("%q holds bytes that no test wrote", name)
			}
		}
	})
}

// someFiles is someTree with files only, each with its own value.
func someFiles(t *rapid.T) map[string]entry {
	out := someTree(t)
	for name, e := range out {
		e.tree = false
		out[name] = e
	}
	return out
}

// A value at the name of a former folder stays, even if the same commit deletes paths below it.
func TestAFolderBecomesAFile(t *testing.T) {
	r := Open(newMemory(), web, nil)
	var main pando.ObjectID
	b := must(r.Born(t.Context(), "a", main))
	do(b.Put("a/b", []byte("below")))
	push(b, &main, t0)
	do(b.Delete("a/b"))
	do(b.Put("a", []byte("file")))
	push(b, &main, t0)
	do(b.Delete("a/b")) // it does not exist
	push(b, &main, t0)
	if got := text(r, main, "a"); got != "file" {
		t.Errorf("a is %q", got)
	}
	do(b.Delete("a"))
	do(b.Put("a/b", []byte("again")))
	push(b, &main, t0)
	if file, below := text(r, main, "a"), text(r, main, "a/b"); file != "" || below != "again" {
		t.Errorf("a is %q, a/b is %q", file, below)
	}
}
