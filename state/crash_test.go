package state

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pando.run/pando"
)

// memory is an Objects that can die before a write.
type memory struct {
	objects  map[pando.ObjectID]pando.Object
	refs     map[string]pando.ObjectID
	journals map[pando.InstanceID][][]byte
	left     int                     // writes until it dies; negative: never
	written  map[pando.ObjectID]bool // since a prune began
}

var errDied = errors.New("died")

func newMemory() *memory {
	return &memory{
		objects: map[pando.ObjectID]pando.Object{}, refs: map[string]pando.ObjectID{},
		journals: map[pando.InstanceID][][]byte{}, left: -1,
	}
}

func (m *memory) Journal(i pando.InstanceID) (pando.Journal, error) {
	return memoryJournal{m, i}, nil
}

// memoryJournal is the journal of one instance. It survives a death, as a file does.
type memoryJournal struct {
	*memory
	of pando.InstanceID
}

func (j memoryJournal) Append(record []byte) error {
	j.journals[j.of] = append(j.journals[j.of], record)
	return nil
}

func (j memoryJournal) Records() ([][]byte, error) { return j.journals[j.of], nil }

func (j memoryJournal) Rewrite(records [][]byte) error {
	if j.left == 0 {
		return errDied
	}
	j.left--
	j.journals[j.of] = records
	return nil
}

func (j memoryJournal) Remove() error {
	delete(j.journals, j.of)
	return nil
}

func (m *memory) Object(id pando.ObjectID) (pando.ObjectKind, []byte, error) {
	o, ok := m.objects[id]
	if !ok {
		return "", nil, pando.ErrNotFound
	}
	return o.Kind, o.Body, nil
}

func (m *memory) Ref(name string) (pando.ObjectID, error) {
	id, ok := m.refs[name]
	if !ok {
		return id, pando.ErrNotFound
	}
	return id, nil
}

func (m *memory) Refs(prefix string) (map[string]pando.ObjectID, error) {
	out := maps.Clone(m.refs)
	maps.DeleteFunc(out,
		func(n string, _ pando.ObjectID) bool { return !strings.HasPrefix(n, prefix) })
	return out, nil
}

func (m *memory) Update(_ context.Context, u pando.ObjectsUpdate) error {
	if m.left == 0 {
		return errDied
	}
	m.left--
	for name, want := range u.If {
		if m.refs[name] != want {
			return pando.ErrConflict
		}
	}
	for _, o := range u.Objects {
		m.objects[o.ID] = o
		if m.written != nil {
			m.written[o.ID] = true
		}
	}
	for name, id := range u.Refs {
		if m.refs[name] = id; id.IsZero() {
			delete(m.refs, name)
		}
	}
	return nil
}

// Prune deletes objects one by one, in random order, and may die before each.
func (m *memory) Prune(
	_ context.Context, live func() (func(pando.ObjectID) bool, error),
) (n int, err error) {
	m.written = map[pando.ObjectID]bool{}
	defer func() { m.written = nil }()
	keep, err := live()
	if err != nil {
		return 0, err
	}
	for id := range m.objects {
		if keep(id) || m.written[id] {
			continue
		}
		if m.left == 0 {
			return n, errDied
		}
		m.left--
		delete(m.objects, id)
		n++
	}
	return n, nil
}

// history is a service under a trim. Its instances write, commit, pull, push, leave and die at
// random.
type history struct {
	*rapid.T
	ctx      context.Context
	objects  *memory
	repo     *Repo
	main     pando.ObjectID    // in the registry
	seen     pando.ObjectID    // in the host's trim; it may lag behind
	late     [2]pando.ObjectID // a swap of main from one to the other that is still on its way
	now      time.Time
	born     int
	branches map[pando.InstanceID]*Branch
	written  map[pando.InstanceID]int // lines in the branch
	left     int                      // lines of instances that are gone
}

func newHistory(t *rapid.T) *history {
	m := newMemory()
	return &history{
		T: t, ctx: context.Background(), objects: m, repo: Open(m, web, typed).With(m), now: t0,
		branches: map[pando.InstanceID]*Branch{}, written: map[pando.InstanceID]int{},
	}
}

// step does one thing, and sometimes dies in the middle of it.
func (h *history) step() {
	// Clocks of hosts differ and are set back.
	h.now = h.now.Add(
		time.Duration(rapid.IntRange(-30_000, 60_000).Draw(h.T, "ms")) * time.Millisecond)
	if len(h.branches) < rapid.IntRange(1, 3).Draw(h.T, "instances") {
		h.born++
		id := pando.InstanceID(fmt.Sprintf("i-%d", h.born))
		h.branches[id] = must(h.repo.Born(h.ctx, id, h.main))
	}
	var ids []pando.InstanceID
	for n := range h.born {
		if id := pando.InstanceID(fmt.Sprintf("i-%d", n+1)); h.branches[id] != nil {
			ids = append(ids, id)
		}
	}
	id := rapid.SampledFrom(ids).Draw(h.T, "who")
	h.objects.left = rapid.SampledFrom([]int{-1, -1, -1, 0, 1, 2, 5}).Draw(h.T, "dies after")
	err := h.act(id, rapid.SampledFrom([]string{"write", "write", "commit", "pull", "push", "push",
		"arrive", "die", "trim"}).Draw(h.T, "step"))
	if h.objects.left = -1; err != nil {
		for k := range h.branches { // the agent died: every branch is opened again
			h.branches[k] = must(h.repo.Born(h.ctx, k, h.main))
		}
	}
}

func (h *history) act(id pando.InstanceID, what string) error {
	b := h.branches[id]
	switch what {
	case "write":
		do(b.Patch("hits", []byte("1")))
		do(b.Patch("log", []byte(fmt.Sprintf("%s %d", id, h.written[id]))))
		do(b.Put("last", []byte(id)))
		h.written[id]++
	case "commit":
		return h.commit(id)
	case "pull":
		_, err := b.Pull(h.ctx, h.main, h.now)
		return err
	case "push":
		return h.push(id, rapid.Bool().Draw(h.T, "swap"), rapid.Bool().Draw(h.T, "noted"))
	case "arrive":
		if h.late[0] == h.main && !h.late[1].IsZero() {
			h.main = h.late[1]
		}
	case "die":
		if err := h.push(id, true, true); err != nil {
			return err
		}
		h.left += h.written[id]
		delete(h.branches, id)
		return b.Discard(h.ctx)
	case "trim":
		keep := Keep{Commits: rapid.IntRange(0, 3).Draw(h.T, "commits"),
			Age: time.Duration(rapid.IntRange(0, 60).Draw(h.T, "age")) * time.Second}
		return h.trim(keep)
	}
	return nil
}

func (h *history) commit(id pando.InstanceID) error {
	_, err := h.branches[id].Commit(h.ctx, "", h.now)
	return err
}

func (h *history) push(id pando.InstanceID, swap, noted bool) error {
	if err := h.commit(id); err != nil {
		return err
	}
	to, _, err := h.branches[id].Merge(h.ctx, h.main, h.now)
	if err != nil {
		return err
	}
	if !swap {
		h.late = [2]pando.ObjectID{h.main, to}
		return nil
	}
	h.main = to
	if !noted {
		return nil
	}
	return h.branches[id].Pushed(to)
}

func (h *history) trim(keep Keep) error {
	if rapid.Bool().Draw(h.T, "the news are here") {
		h.seen = h.main
	}
	known := Known{Heads: map[pando.ServiceKey]pando.ObjectID{},
		Alive: func(i pando.InstanceID) bool { return h.branches[i] != nil }}
	if !h.main.IsZero() {
		known.Heads[web] = h.seen
	}
	_, err := Trim(h.ctx, h.objects, known, keep, h.now)
	if errors.Is(err, pando.ErrNotFound) && h.seen != h.main {
		err = errDied // its old main is half gone; it deleted nothing, and a later trim has the new main
	}
	if err != nil && !errors.Is(err, errDied) {
		h.Fatalf("trim: %v", err)
	}
	h.whole()
	return err
}

// whole checks that every object that main and the branches reach exists.
func (h *history) whole() {
	walk := Walk{Objects: h.objects, Edge: must(Edge(h.objects, web))}
	heads := []pando.ObjectID{}
	if !h.main.IsZero() {
		heads = append(heads, h.main)
	}
	for _, b := range h.branches {
		heads = append(heads, b.Head())
	}
	err := walk.From(heads, func(_ pando.ObjectKind, id pando.ObjectID) error {
		_, _, err := h.objects.Object(id)
		return err
	})
	if err != nil {
		h.Fatalf("after a trim: %v", err)
	}
}

// Every counted hit and every written line is in main exactly once. That holds for any order of
// birth, commit, pull, push and exit, any number of trims, and a death at any point.
func TestExactlyOnceWhereverItCrashes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := newHistory(t)
		steps := rapid.IntRange(5, 80).Draw(t, "steps")
		for range steps {
			h.step()
		}
		total := h.left
		for id := range h.branches {
			push(must(h.repo.Born(h.ctx, id, h.main)), &h.main, h.now)
			total += h.written[id]
		}
		checkOnce(t, h.repo, h.main, total)
	})
}

// checkOnce checks main against the number of committed lines: as many hits, and each line once.
func checkOnce(t *rapid.T, r *Repo, main pando.ObjectID, total int) {
	seen := map[string]int{}
	for line := range strings.Lines(text(r, main, "log")) {
		seen[line]++
	}
	if len(seen) != total || text(r, main, "hits") != fmt.Sprint(total) && total > 0 {
		t.Fatalf("%d different lines and %s hits in main, %d were written",
			len(seen), text(r, main, "hits"), total)
	}
	for line, n := range seen {
		if n != 1 {
			t.Fatalf("%q is in main %d times", line, n)
		}
	}
}

// Another thread of the application may commit while its push is on its way to the registry.
func TestACommitDuringAPushIsKept(t *testing.T) {
	ctx := t.Context()
	r := Open(newMemory(), web, typed)
	var main pando.ObjectID
	b := must(r.Born(ctx, "a", main))
	for _, line := range []string{"first", "second"} {
		do(b.Patch("log", []byte(line)))
		do(b.Patch("hits", []byte("1")))
		must(b.Commit(ctx, line, t0))
		to, _, err := b.Merge(ctx, main, t0)
		do(err)
		do(b.Patch("log", []byte(line+" again")))
		do(b.Patch("hits", []byte("1")))
		must(b.Commit(ctx, "meanwhile", t0))
		main = to
		do(b.Pushed(to))
	}
	if merged := must(b.Merged(main)); merged {
		t.Error("main is reported to have a commit that it was not given")
	}
	push(b, &main, t0)
	if got, want := text(r, main, "log"), "first\nfirst again\nsecond\nsecond again\n"; got != want {
		t.Errorf("the log is %q, want %q", got, want)
	}
	if got := text(r, main, "hits"); got != "4" {
		t.Errorf("%s hits, want 4", got)
	}
}

// A push is one write: its note travels with the branch's next write. An agent that dies before
// that finds the branch at main, with all pushes of others by then.
func TestThePushIsNotedByTheNextWrite(t *testing.T) {
	ctx := t.Context()
	objects := newMemory()
	r := Open(objects, web, typed)
	var main pando.ObjectID
	a, b := must(r.Born(ctx, "a", main)), must(r.Born(ctx, "b", main))
	do(a.Patch("hits", []byte("3")))
	push(a, &main, t0)
	do(b.Patch("hits", []byte("4")))
	must(b.Commit(ctx, "", t0))
	objects.left = 1 // the merge is the one write
	to, _, err := b.Merge(ctx, main, t0)
	do(err)
	main = to
	do(b.Pushed(main))
	objects.left = -1
	for _, b := range []*Branch{b, must(r.Born(ctx, "b", main))} {
		if b.Head() != main || string(must(b.Get("hits")).Bytes) != "7" {
			t.Errorf("the branch is at %s with %s hits, want %s with 7", b.Head(), must(b.Get("hits")).Bytes,
				main)
		}
	}
	do(b.Settle(ctx))
	if got := objects.refs[r.ref(branchRef, "b")]; got != main {
		t.Errorf("the settled branch is at %s, want %s", got, main)
	}
	if left := must(objects.Refs(r.ref(offerRef, "b/"))); len(left) > 0 {
		t.Errorf("offers are left: %v", left)
	}
}

// A journal that could not be rewritten names the commit that took its writes. A trim keeps that
// commit, because its absence would make the next agent commit the writes again.
func TestATrimCommitsNothingAgain(t *testing.T) {
	m := newMemory()
	repo := Open(m, web, typed).With(m)
	var main pando.ObjectID
	b := must(repo.Born(t.Context(), "i-1", main))
	do(b.Patch("hits", []byte("1")))
	m.left = 1 // the commit is stored, and the journal stays as it is
	must(b.Commit(t.Context(), "", t0))
	m.left = -1
	push(b, &main, t0)
	for n := range 3 {
		other := must(repo.Born(t.Context(), pando.InstanceID(fmt.Sprintf("other-%d", n)), main))
		do(other.Patch("hits", []byte("1")))
		push(other, &main, t0.Add(time.Duration(n)*time.Minute))
		do(other.Discard(t.Context()))
	}
	must(b.Pull(t.Context(), main, t0))
	alive := func(pando.InstanceID) bool { return true }
	known := Known{Heads: map[pando.ServiceKey]pando.ObjectID{web: main}, Alive: alive}
	for range 2 {
		must(Trim(t.Context(), m, known, Keep{Commits: 1}, t0.Add(time.Hour)))
	}
	again := must(repo.Born(t.Context(), "i-1", main))
	push(again, &main, t0.Add(time.Hour))
	if hits := must(repo.Read(main, "hits")); string(hits.Bytes) != "4" {
		t.Errorf("4 hits became %s", hits.Bytes)
	}
}
