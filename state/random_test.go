package state

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pando.run/pando"
)

// model is the expected content of main once every branch has pushed.
type model struct {
	hits  int
	lines map[string][]string // by branch, in the order of its writes
	tags  map[string]bool
}

// Branches write, pull and push in any order. In the end main has the sum of the counter, each line
// of the log once with the order of its writer, and the members that their branches kept.
func TestMainHasEveryChangeInAnyOrderOfMerges(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		ctx, now := t.Context(), t0
		r := Open(newMemory(), web, typed)
		var main pando.ObjectID
		want := model{lines: map[string][]string{}, tags: map[string]bool{}}
		names := []string{"a", "b", "c"}
		branches := map[string]*Branch{}
		for _, n := range names {
			branches[n] = must(r.Born(ctx, pando.InstanceID(n), main))
		}
		for step := range rapid.IntRange(1, 40).Draw(rt, "steps") {
			now = now.Add(time.Second)
			name := rapid.SampledFrom(names).Draw(rt, "branch")
			b := branches[name]
			switch rapid.IntRange(0, 5).Draw(rt, "step") {
			case 0:
				add := rapid.IntRange(-5, 20).Draw(rt, "add")
				do(b.Patch("hits", []byte(strconv.Itoa(add))))
				want.hits += add
			case 1:
				line := fmt.Sprintf("%s %d", name, step)
				do(b.Patch("log", []byte(line)))
				want.lines[name] = append(want.lines[name], line)
			case 2:
				// Each branch has members of its own, so the last word about a member is its branch's.
				tag := fmt.Sprintf("%s%d", name, rapid.IntRange(0, 3).Draw(rt, "tag"))
				if rapid.Bool().Draw(rt, "remove") {
					do(b.Patch("tags", []byte("-"+tag)))
					delete(want.tags, tag)
				} else {
					do(b.Patch("tags", []byte("+"+tag)))
					want.tags[tag] = true
				}
			case 3:
				must(b.Commit(ctx, "commit", now))
			case 4:
				must(b.Commit(ctx, "commit", now))
				must(b.Pull(ctx, main, now))
			default:
				push(b, &main, now)
			}
		}
		for _, n := range names {
			now = now.Add(time.Second)
			push(branches[n], &main, now)
		}
		want.check(rt, r, main)
	})
}

// check compares main with the model.
func (m model) check(t *rapid.T, r *Repo, main pando.ObjectID) {
	if got := text(r, main, "hits"); got != strconv.Itoa(m.hits) && (got != "" || m.hits != 0) {
		t.Fatalf("main has %q hits, want %d", got, m.hits)
	}
	got := map[string][]string{}
	for line := range strings.Lines(text(r, main, "log")) {
		name, _, _ := strings.Cut(line, " ")
		got[name] = append(got[name], strings.TrimSuffix(line, "\n"))
	}
	for name, lines := range m.lines {
		if !slices.Equal(got[name], lines) {
			t.Fatalf("main has the lines %q of %s, want %q", got[name], name, lines)
		}
	}
	if len(got) != len(m.lines) {
		t.Fatalf("main has lines of %v, want those of %v", slices.Collect(maps.Keys(got)),
			slices.Collect(maps.Keys(m.lines)))
	}
	tags := strings.Fields(text(r, main, "tags"))
	if want := slices.Sorted(maps.Keys(m.tags)); !slices.Equal(tags, want) {
		t.Fatalf("main has the members %q, want %q", tags, want)
	}
}

// Versions of an opaque path that were written at the same time are all kept, each under a name of
// its own.
func TestNoVersionOfAnOpaquePathIsLost(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		ctx := t.Context()
		r := Open(newMemory(), web, typed)
		var main pando.ObjectID
		n := rapid.IntRange(2, 6).Draw(rt, "branches")
		var branches []*Branch
		for k := range n {
			branches = append(branches, must(r.Born(ctx, pando.InstanceID(fmt.Sprint("i", k)), main)))
		}
		want := map[string]bool{}
		for k, b := range branches {
			v := fmt.Sprint("version of ", k)
			do(b.Put("blob/x", []byte(v)))
			want[v] = true
		}
		order := rapid.Permutation(branches).Draw(rt, "order")
		for k, b := range order {
			result := push(b, &main, t0.Add(time.Duration(k)*time.Second))
			if (len(result.Conflicts) > 0) != (k > 0) {
				rt.Fatalf("push %d reports the conflicts %v", k, result.Conflicts)
			}
		}
		last := must(r.Born(ctx, "reader", main))
		for _, e := range must(last.List("blob/")) {
			v := text(r, main, e.Path)
			if !want[v] {
				rt.Fatalf("%s has %q, which no branch wrote, or which is there twice", e.Path, v)
			}
			delete(want, v)
		}
		if len(want) > 0 {
			rt.Fatalf("main has lost %v", slices.Collect(maps.Keys(want)))
		}
	})
}
