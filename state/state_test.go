package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pando.run/pando"
)

var (
	t0    = time.Unix(1_800_000_000, 0).UTC()
	web   = pando.DefaultService("web")
	typed = map[string]pando.StateType{
		"hits": pando.StateCounter, "log": pando.StateLog, "tags": pando.StateSet,
		"blob/**": pando.StateOpaque,
	}
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func do(err error) {
	if err != nil {
		panic(err)
	}
}

func text(r *Repo, main pando.ObjectID, path string) string {
	v, err := r.Read(main, path)
	if errors.Is(err, pando.ErrNotFound) {
		return ""
	}
	do(err)
	return string(v.Bytes)
}

// push merges a branch into *main as the agent does.
func push(b *Branch, main *pando.ObjectID, now time.Time) pando.MergeResult {
	must(b.Commit(context.Background(), "push", now))
	id, result, err := b.Merge(context.Background(), *main, now)
	do(err)
	*main = id
	do(b.Pushed(id))
	return result
}

func TestEveryTypeMerges(t *testing.T) {
	ctx := t.Context()
	r := Open(newMemory(), web, typed)
	var main pando.ObjectID
	a, b := must(r.Born(ctx, "a", main)), must(r.Born(ctx, "b", main))
	for n, branch := range []*Branch{a, b} {
		do(branch.Patch("hits", []byte(fmt.Sprint(n+1))))
		do(branch.Patch("log", []byte(fmt.Sprintf("line of %d", n))))
		do(branch.Patch("tags", []byte(fmt.Sprintf("+t%d\n+both", n))))
		do(branch.Put("last", []byte{byte('a' + n)}))
		do(branch.Put("blob/x", []byte{byte('a' + n)}))
		do(branch.Put(fmt.Sprintf("own/%d", n), []byte("x")))
	}
	push(a, &main, t0)
	result := push(b, &main, t0.Add(time.Second))
	want := map[string]string{
		"hits": "3", "log": "line of 0\nline of 1\n", "tags": "both\nt0\nt1\n", "last": "b",
		"blob/x": "a", "blob/x.conflict-b": "b", "own/0": "x", "own/1": "x",
	}
	for path, v := range want {
		if got := text(r, main, path); got != v {
			t.Errorf("%s is %q, want %q", path, got, v)
		}
	}
	if len(result.Conflicts) != 1 || result.Conflicts[0] != "blob/x" {
		t.Errorf("conflicts are %v", result.Conflicts)
	}
	if log := must(r.Log(main, 10)); len(log) < 2 || log[0].Conflicts[0] != "blob/x" {
		t.Errorf("the log does not name the conflict: %+v", log)
	}
}

func TestAChangeIsMadeAsAWholeOrNotAtAll(t *testing.T) {
	ctx := t.Context()
	m := newMemory()
	r := Open(m, web, typed)
	b := must(r.Born(ctx, "a", pando.ObjectID{}))
	do(b.Patch("log", []byte("pending")))
	do(b.Patch("tags", []byte("+x")))
	wrong := pando.StateChange{Put: map[string]string{"a": "1"},
		Patch: map[string]string{"log": "lost\n", "tags": "+y", "hits": "many"}}
	if _, err := b.CommitChange(ctx, wrong, t0); !errors.Is(err, pando.ErrInvalid) {
		t.Errorf("a wrong change: %v", err)
	}
	twice := pando.StateChange{Put: map[string]string{"a": "1"}, Delete: []string{"a"}}
	if _, err := b.CommitChange(ctx, twice, t0); !errors.Is(err, pando.ErrInvalid) {
		t.Errorf("a path that is in a change twice: %v", err)
	}
	right := pando.StateChange{Put: map[string]string{"a": "1"},
		Patch: map[string]string{"log": "line", "tags": "+z", "hits": "2"}}
	m.left = 0
	if _, err := b.CommitChange(ctx, right, t0); !errors.Is(err, errDied) {
		t.Errorf("a change that cannot be written: %v", err)
	}
	m.left = -1
	must(b.CommitChange(ctx, right, t0))
	for path, want := range map[string]string{
		"log": "pending\nline\n", "tags": "x\nz\n", "hits": "2", "a": "1",
	} {
		if got := text(r, b.Head(), path); got != want {
			t.Errorf("%s is %q, want %q", path, got, want)
		}
	}
}

func TestADeletionNeedsTheBase(t *testing.T) {
	ctx := t.Context()
	r := Open(newMemory(), web, typed)
	var main pando.ObjectID
	a := must(r.Born(ctx, "a", main))
	do(a.Put("x", []byte("1")))
	do(a.Put("y", []byte("1")))
	push(a, &main, t0)
	b := must(r.Born(ctx, "b", main))
	do(b.Delete("x"))
	do(a.Put("z", []byte("1")))
	push(a, &main, t0.Add(time.Second))
	push(b, &main, t0.Add(2*time.Second))
	x, y, z := text(r, main, "x"), text(r, main, "y"), text(r, main, "z")
	if x != "" || y != "1" || z != "1" {
		t.Errorf("x %q, y %q, z %q; want x gone and the others there", x, y, z)
	}
}

func TestALongLogCostsWhatIsAppended(t *testing.T) {
	ctx := t.Context()
	m := newMemory()
	r := Open(m, web, typed)
	var main pando.ObjectID
	a := must(r.Born(ctx, "a", main))
	line := strings.Repeat("x", 99) + "\n"
	do(a.Patch("log", []byte(strings.Repeat(line, 200_000))))
	push(a, &main, t0)
	b := must(r.Born(ctx, "b", main))
	do(b.Patch("log", []byte(strings.Repeat(line, 1000))))
	must(b.Commit(ctx, "", t0))
	before := len(m.objects)
	bytesBefore := 0
	for _, o := range m.objects {
		bytesBefore += len(o.Body)
	}
	push(b, &main, t0)
	after := 0
	for _, o := range m.objects {
		after += len(o.Body)
	}
	if wrote := after - bytesBefore; wrote > 300_000 {
		t.Errorf("1,000 lines wrote %d bytes in %d objects", wrote, len(m.objects)-before)
	}
	if got := len(text(r, main, "log")); got != 201_000*len(line) {
		t.Errorf("the log has %d bytes", got)
	}
}

func FuzzPaths(f *testing.F) {
	for _, s := range []string{"a", "a/b", "..", "a/../b", "/a", "a//b", ".git/x", ".GITmodules",
		"a/.g\u200dit/x", "git~1", "a\x00", strings.Repeat("a", 2000)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, p string) {
		if CheckPath(p) == nil &&
			(strings.Contains("/"+p+"/", "/../") || strings.HasPrefix(p, "/") || p == "") {
			t.Errorf("%q is let through", p)
		}
	})
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte("100644 a\x00aaaaaaaaaaaaaaaaaaaa"))
	f.Add([]byte("40000 a\x00aaaaaaaaaaaaaaaaaaaa100644 a.b\x00aaaaaaaaaaaaaaaaaaaa"))
	f.Add([]byte("tree 0123456789012345678901234567890123456789\nauthor a <a> 1 +0000\n\nm\n"))
	f.Add(commit{tree: pando.ObjectID{1}, parents: []pando.ObjectID{{2}, {3}}, author: "web-1", at: t0,
		message: "m\n\nconflict: a"}.encode(web))
	f.Fuzz(func(t *testing.T, b []byte) {
		if all, err := read(b).entries(); err == nil {
			if again, _, err := tree("").edit(all); err != nil || string(again) != string(b) {
				t.Errorf("a tree does not survive: %q, then %q, %v", b, again, err)
			}
		}
		c, err := decodeCommit(b)
		if err != nil {
			return
		}
		again, err := decodeCommit(c.encode(web))
		if err != nil || again.tree != c.tree || len(again.parents) != len(c.parents) ||
			!again.at.Equal(c.at) {
			t.Errorf("a commit does not survive: %v", err)
		}
	})
}

// A store may return damaged objects. For any bytes of one object, reading, merging and trimming
// must end, with or without an error.
func FuzzDamagedObject(f *testing.F) {
	f.Add(uint8(0), []byte(nil))
	f.Add(uint8(3), []byte("40000 00\x00aaaaaaaaaaaaaaaaaaaa"))
	f.Fuzz(func(t *testing.T, which uint8, body []byte) {
		ctx := t.Context()
		m := newMemory()
		r := Open(m, web, typed)
		var main pando.ObjectID
		a, b := must(r.Born(ctx, "a", main)), must(r.Born(ctx, "b", main))
		for n, branch := range []*Branch{a, b} {
			do(branch.Patch("hits", []byte(fmt.Sprint(n+1))))
			do(branch.Patch("log", []byte(fmt.Sprintf("line of %d", n))))
			do(branch.Put("deep/er/x", []byte{byte('a' + n)}))
			must(branch.Commit(ctx, "", t0))
		}
		push(a, &main, t0)
		ids := slices.SortedFunc(maps.Keys(m.objects),
			func(a, b pando.ObjectID) int { return bytes.Compare(a[:], b[:]) })
		id := ids[int(which)%len(ids)]
		o := m.objects[id]
		o.Body = body
		m.objects[id] = o
		_, _ = b.Get("log")
		_, _ = b.List("")
		_, _ = r.Log(main, 10)
		_, _, _ = b.Merge(ctx, main, t0)
		_, _ = b.Pull(ctx, main, t0)
		_, _ = Trim(ctx, m, Known{Heads: map[pando.ServiceKey]pando.ObjectID{web: main}},
			Keep{Commits: 1}, t0.Add(time.Hour))
	})
}
