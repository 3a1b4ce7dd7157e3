package state

import (
	"slices"

	"pando.run/pando"
)

// own is a commit of a branch, with the commit of main that the branch contained by then.
type own struct{ id, main pando.ObjectID }

// common returns the common tree of the branch and main. Usually that is the tree of base.
//
// Main may contain newer commits of the branch. The answer to a push was lost, an agent died before
// it noted its swap of main, or another host merged a part of the branch. Then common looks for the
// newest of them back to the start of the branch.
func (b *Branch) common(
	w *work, main pando.ObjectID,
) (root pando.ObjectID, contained bool, err error) {
	if b.head == b.base {
		return root, true, nil
	}
	shared := b.repo.shared != nil && b.repo.shared()
	if !b.unsure && !shared {
		root, err = w.rootOf(b.base)
		return root, false, err
	}
	line, err := b.line(w)
	if err != nil {
		return root, false, err
	}
	var noted pando.ObjectID
	if shared { // a host that merges a part of a branch leaves a note
		if noted, err = Merged(b.repo.objects, b.repo.service, b.instance); err != nil {
			return root, false, err
		}
	}
	n, err := b.newestIn(w, line, main, noted)
	if err != nil || n == 0 && len(line) > 0 {
		return root, err == nil, err
	}
	root, err = b.commonTree(w, line, n, b.base)
	return root, false, err
}

// line returns the commits of the branch since its start, newest first. The history of main beside
// them may be trimmed on this host: other hosts trim for their own branches only.
func (b *Branch) line(w *work) ([]own, error) {
	var line []own
	var pulled []pando.ObjectID // by commit: what it pulled, or zero
	for id := b.head; id != b.since && !id.IsZero(); {
		c, err := w.commit(id)
		if err != nil {
			return nil, err
		}
		line = append(line, own{id: id})
		pulled = append(pulled, pando.ObjectID{})
		if len(c.parents) > 1 {
			pulled[len(pulled)-1] = c.parents[1]
		}
		if len(c.parents) == 0 || w.edge(id) {
			break
		}
		id = c.parents[0]
	}
	at := b.since
	for n := range slices.Backward(line) {
		if !pulled[n].IsZero() {
			at = pulled[n]
		}
		line[n].main = at
	}
	return line, nil
}

// newestIn returns the place in the line of the newest commit that another commit contains, as its
// history on this host or a note shows. It returns the length of the line if there is none.
func (b *Branch) newestIn(w *work, line []own, of, noted pando.ObjectID) (int, error) {
	if len(line) == 0 {
		return 0, nil
	}
	start, err := w.commit(b.since)
	if err != nil {
		return 0, err
	}
	known, err := w.ancestors(of, start.at)
	if err != nil {
		return 0, err
	}
	for n, c := range line {
		if _, in := known[c.id]; in || c.id == noted {
			return n, nil
		}
	}
	return len(line), nil
}

// commonTree returns the common tree of two commits. One is a commit of main that contains the branch up
// to place n of its line, and the other contains the whole line and a commit of main.
//
// Main only grows, so a commit of main contains all that the branch pulled before. If the branch
// pulled main after place n, the histories cross: both commits contain place n and the pulled main,
// and neither of these contains the other. Their merge is the base, and it needs the common tree of
// the two (recursive merge base).
func (b *Branch) commonTree(w *work, line []own, n int, main pando.ObjectID) (pando.ObjectID, error) {
	if n == len(line) {
		return w.rootOf(main)
	}
	if line[n].main == main {
		return w.rootOf(line[n].id)
	}
	older, err := b.newestIn(w, line[n:], main, pando.ObjectID{})
	if err != nil {
		return main, err
	}
	if older == 0 { // the pulled main contains place n
		return w.rootOf(main)
	}
	under, err := b.commonTree(w, line[n:], older, line[n].main)
	if err != nil {
		return under, err
	}
	ours, err := w.rootOf(main)
	if err != nil {
		return ours, err
	}
	theirs, err := w.rootOf(line[n].id)
	if err != nil {
		return theirs, err
	}
	m := &merge{work: w, types: b.repo.types, branch: b.instance}
	return m.folders("", under, ours, theirs)
}
