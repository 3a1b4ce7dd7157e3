package bolt

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pando.run/pando"
	"pando.run/pando/state"
)

// history is a service of three instances that write keys of one folder, merge and pull at random.
type history struct {
	*rapid.T
	store    *Store
	branches []*state.Branch
	main     pando.ObjectID
	now      time.Time
	seen     map[pando.ObjectID]bool // by any walk so far
}

var web = pando.DefaultService("web")

func (h *history) ok(err error) {
	if err != nil {
		h.Fatal(err)
	}
}

func (h *history) step() {
	b := rapid.SampledFrom(h.branches).Draw(h.T, "who")
	h.now = h.now.Add(time.Second)
	switch rapid.SampledFrom([]string{"write", "write", "pull", "push", "push", "settle", "trim"}).
		Draw(h.T, "step") {
	case "write":
		for range rapid.IntRange(1, 20).Draw(h.T, "keys") {
			h.ok(b.Put(fmt.Sprintf("folder/key-%02d", rapid.IntRange(0, 60).Draw(h.T, "key")),
				fmt.Append(nil, rapid.Uint16().Draw(h.T, "value"))))
		}
		_, err := b.Commit(h.Context(), "", h.now)
		h.ok(err)
	case "pull":
		_, err := b.Pull(h.Context(), h.main, h.now)
		h.ok(err)
	case "push":
		to, _, err := b.Merge(h.Context(), h.main, h.now)
		h.ok(err)
		if rapid.Bool().Draw(h.T, "swap") {
			h.main = to
			h.ok(b.Pushed(to))
		}
	case "settle":
		h.store.writing.Lock()
		h.store.recent.generation++
		h.store.writing.Unlock()
		_, err := h.store.settle(h.Context(), func(pando.ObjectID) bool { return true })
		h.ok(err)
	case "trim":
		h.walk() // the trim may delete objects that are reachable now
		known := state.Known{
			Heads: map[pando.ServiceKey]pando.ObjectID{}, Alive: func(pando.InstanceID) bool { return true },
		}
		if !h.main.IsZero() {
			known.Heads[web] = h.main
		}
		_, err := state.Trim(h.Context(), h.store, known,
			state.Keep{Commits: rapid.IntRange(0, 3).Draw(h.T, "commits")}, h.now)
		h.ok(err)
		h.store.cache.clear()
		live := h.walk()
		for id := range h.seen {
			if _, _, err := h.store.Object(id); !live.Saw(id) && !errors.Is(err, pando.ErrNotFound) {
				h.Fatalf("%s is not reached and not gone: %v", id, err)
			}
		}
	}
}

// walk reads every object that a ref or main reaches.
func (h *history) walk() *state.Walk {
	refs, err := h.store.Refs("")
	h.ok(err)
	walk := &state.Walk{Objects: h.store, Edge: map[pando.ObjectID]bool{}}
	var heads []pando.ObjectID
	for name, id := range refs {
		if strings.Contains(name, "/edge/") {
			walk.Edge[id] = true
		} else {
			heads = append(heads, id)
		}
	}
	if !h.main.IsZero() {
		heads = append(heads, h.main)
	}
	h.ok(walk.From(heads, func(_ pando.ObjectKind, id pando.ObjectID) error {
		h.seen[id] = true
		kind, body, err := h.store.Object(id)
		if err == nil && state.ID(kind, body) != id {
			err = fmt.Errorf("the object read as %s is another one", id)
		}
		return err
	}))
	return walk
}

// The test merges, settles and trims in random order. Every reachable object reads back as written,
// and a trim deletes all others.
func TestWhatIsReachedIsThereAndNothingElse(t *testing.T) {
	defer func(n int) { settleMin = n }(settleMin)
	settleMin = 2
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		store, err := Open(filepath.Join(t.TempDir(), fmt.Sprint(n)))
		if err != nil {
			rt.Fatal(err)
		}
		defer store.Close()
		store.db.NoSync = true
		h := &history{
			T: rt, store: store, now: time.Unix(1_800_000_000, 0), seen: map[pando.ObjectID]bool{},
		}
		repo := state.Open(store, web, map[string]pando.StateType{"folder/*": pando.StateOpaque})
		for n := range 3 {
			b, err := repo.Born(rt.Context(), pando.InstanceID(fmt.Sprintf("web-%d", n)), h.main)
			h.ok(err)
			h.branches = append(h.branches, b)
		}
		for range rapid.IntRange(5, 40).Draw(rt, "steps") {
			h.step()
		}
		h.walk()
	})
}
