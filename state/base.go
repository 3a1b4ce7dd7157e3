package state

import (
	"bytes"
	"errors"
	"slices"
	"time"

	"pando.run/pando"
)

// common returns the common tree of the branch and main. Usually that is the tree of base.
//
// Main may contain newer commits of the branch. Either the answer to a push was lost, or an agent
// died before it noted its swap of main. Then common searches the histories back to the start of
// the branch. If they cross, it merges the crossing first (recursive merge base).
func (b *Branch) common(
	w *work, main pando.ObjectID,
) (root pando.ObjectID, contained bool, err error) {
	if b.head == b.base {
		return root, true, nil
	}
	if !b.unsure && (b.repo.shared == nil || !b.repo.shared()) {
		root, err = w.rootOf(b.base)
		return root, false, err
	}
	since, err := w.commit(b.since)
	if err != nil {
		return root, false, err
	}
	found, err := w.bases(b.head, main, since.at)
	if err != nil {
		return root, false, err
	}
	if b.repo.shared != nil && b.repo.shared() {
		if found, err = withNotes(b, w, found); err != nil {
			return root, false, err
		}
	}
	if len(found) == 1 && found[0] == b.head {
		return root, true, nil
	}
	if len(found) == 0 {
		// While the branch was idle, a trim may have cut the history between its start and main.
		// Main then has no commit of the branch, and the base is certain.
		cut, err := w.cut(main, since.at)
		if err != nil {
			return root, false, err
		}
		if cut {
			root, err = w.rootOf(b.base)
			return root, false, err
		}
	}
	root, err = b.virtual(w, found, since.at)
	return root, false, err
}

// withNotes adds to the common commits of a branch and main those that the history on this host may
// hide. Other hosts trim main for their own branches only. A host that merges a part of a branch
// leaves a note. withNotes returns the newest of all of them.
func withNotes(b *Branch, w *work, found []pando.ObjectID) ([]pando.ObjectID, error) {
	id, err := Merged(b.repo.objects, b.repo.service, b.instance)
	if err != nil {
		return nil, err
	}
	switch in, err := w.isIn(id, b.head); {
	case err != nil && !errors.Is(err, pando.ErrNotFound):
		return nil, err
	case in && err == nil:
		found = append(found, id)
	}
	return w.newest(append(found, b.base))
}

// newest returns the commits that no other one contains.
func (w *work) newest(all []pando.ObjectID) (out []pando.ObjectID, err error) {
	slices.SortFunc(all, func(a, b pando.ObjectID) int { return bytes.Compare(a[:], b[:]) })
	all = slices.Compact(all)
	for _, id := range all {
		behind := false
		for _, other := range all {
			if other == id || behind {
				continue
			}
			if behind, err = w.isIn(id, other); err != nil {
				return nil, err
			}
		}
		if !behind {
			out = append(out, id)
		}
	}
	return out, nil
}

// virtual merges several bases into one tree, like an earlier merge of them.
func (b *Branch) virtual(w *work, bases []pando.ObjectID, until time.Time) (pando.ObjectID, error) {
	var root pando.ObjectID
	for n, id := range bases {
		next, err := w.rootOf(id)
		if err != nil {
			return root, err
		}
		if n == 0 {
			root = next
			continue
		}
		older, err := w.bases(bases[n-1], id, until)
		if err != nil {
			return root, err
		}
		under, err := b.virtual(w, older, until)
		if err != nil {
			return root, err
		}
		m := &merge{work: w, types: b.repo.types, branch: b.instance}
		if root, err = m.folders("", under, root, next); err != nil {
			return root, err
		}
	}
	return root, nil
}
