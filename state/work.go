package state

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"time"

	"pando.run/pando"
)

// work is one operation on the tree: what it reads comes from the store, what it makes is kept until all of it can be
// written at once.
type work struct {
	objects pando.Objects
	made    map[pando.ObjectID]pando.Object
}

func newWork(o pando.Objects) *work {
	return &work{objects: o, made: map[pando.ObjectID]pando.Object{}}
}

func (w *work) put(kind pando.ObjectKind, body []byte) pando.ObjectID {
	id := ID(kind, body)
	if _, ok := w.made[id]; !ok {
		w.made[id] = pando.Object{ID: id, Kind: kind, Body: body}
	}
	return id
}

func (w *work) get(want pando.ObjectKind, id pando.ObjectID) ([]byte, error) {
	if o, ok := w.made[id]; ok {
		return o.Body, nil
	}
	kind, body, err := w.objects.Object(id)
	if err != nil {
		return nil, fmt.Errorf("read %s %s: %w", want, id, err)
	}
	if kind != want {
		return nil, fmt.Errorf("%w: object %s is a %s, not a %s", pando.ErrInvalid, id, kind, want)
	}
	return body, nil
}

func (w *work) blob(id pando.ObjectID) ([]byte, error) { return w.get(pando.BlobObject, id) }

// tree reads a folder; the zero id is the empty one.
func (w *work) tree(id pando.ObjectID) (tree, error) {
	if id.IsZero() {
		return nil, nil
	}
	b, err := w.get(pando.TreeObject, id)
	if err != nil {
		return nil, err
	}
	return decodeTree(b)
}

func (w *work) commit(id pando.ObjectID) (commit, error) {
	b, err := w.get(pando.CommitObject, id)
	if err != nil {
		return commit{}, err
	}
	return decodeCommit(b)
}

// rootOf is the tree of a commit; no commit has the empty tree.
func (w *work) rootOf(id pando.ObjectID) (pando.ObjectID, error) {
	if id.IsZero() {
		return pando.ObjectID{}, nil
	}
	c, err := w.commit(id)
	return c.tree, err
}

// save returns what the store has to write.
func (w *work) save() []pando.Object {
	out := make([]pando.Object, 0, len(w.made))
	for _, o := range w.made {
		out = append(out, o)
	}
	return out
}

// clockSkewMax is by how much the clocks of two writers of one history may differ.
const clockSkewMax = 5 * time.Second

// isIn says whether a commit is main or comes before it.
func (w *work) isIn(id, main pando.ObjectID) (bool, error) {
	if main.IsZero() || id.IsZero() {
		return false, nil
	}
	c, err := w.commit(id)
	if err != nil {
		return false, err
	}
	before, err := w.ancestors(main, c.at.Add(-clockSkewMax))
	return before[id], err
}

// bases are the newest commits that two commits have in common: one, or several if their histories cross. until bounds how
// far back is looked.
func (w *work) bases(a, b pando.ObjectID, until time.Time) ([]pando.ObjectID, error) {
	ofA, err := w.ancestors(a, until)
	if err != nil {
		return nil, err
	}
	ofB, err := w.ancestors(b, until)
	if err != nil {
		return nil, err
	}
	older := map[pando.ObjectID]bool{}
	var common []pando.ObjectID
	for id := range ofA {
		if ofB[id] {
			common = append(common, id)
		}
	}
	for _, id := range common {
		if older[id] {
			continue
		}
		c, err := w.commit(id)
		if err != nil {
			return nil, err
		}
		for _, p := range c.parents {
			before, err := w.ancestors(p, until)
			if err != nil {
				return nil, err
			}
			maps.Copy(older, before)
		}
	}
	common = slices.DeleteFunc(common, func(id pando.ObjectID) bool { return older[id] })
	slices.SortFunc(common, func(a, b pando.ObjectID) int { return bytes.Compare(a[:], b[:]) })
	return common, nil
}

// ancestors are a commit and what comes before it, back to a time.
func (w *work) ancestors(of pando.ObjectID, until time.Time) (map[pando.ObjectID]bool, error) {
	seen := map[pando.ObjectID]bool{}
	for queue := []pando.ObjectID{of}; len(queue) > 0; queue = queue[1:] {
		id := queue[0]
		if seen[id] {
			continue
		}
		seen[id] = true
		c, err := w.commit(id)
		if err != nil {
			return nil, err
		}
		if !c.at.Before(until) {
			queue = append(queue, c.parents...)
		}
	}
	return seen, nil
}
