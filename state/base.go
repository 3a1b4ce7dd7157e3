package state

import (
	"time"

	"pando.run/pando"
)

// common is the tree that the branch and main have in common. Usually that is base's; when main may contain commits of
// ours that are newer (a push whose answer was lost, an agent that died between the swap of main and its own note of it),
// the histories are searched, and where they cross the crossing is merged first (recursive merge base).
func (b *Branch) common(w *work, main pando.ObjectID) (root pando.ObjectID, contained bool, err error) {
	if !b.unsure {
		root, err = w.rootOf(b.base)
		return root, b.head == b.base, err
	}
	base, err := w.commit(b.base)
	if err != nil {
		return root, false, err
	}
	until := base.at.Add(-clockSkewMax)
	found, err := w.bases(b.head, main, until)
	if err != nil {
		return root, false, err
	}
	if len(found) == 1 && found[0] == b.head {
		return root, true, nil
	}
	root, err = b.virtual(w, found)
	return root, false, err
}

// virtual merges several bases into one tree, as if somebody had merged them at the time.
func (b *Branch) virtual(w *work, bases []pando.ObjectID) (pando.ObjectID, error) {
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
		older, err := w.bases(bases[n-1], id, time.Time{})
		if err != nil {
			return root, err
		}
		under, err := b.virtual(w, older)
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
