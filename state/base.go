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
	s, err := b.strand(w)
	if err != nil {
		return root, false, err
	}
	var noted pando.ObjectID
	if shared { // a host that merges a part of a branch leaves a note
		if noted, err = Merged(b.repo.objects, b.repo.service, b.instance); err != nil {
			return root, false, err
		}
	}
	n, err := s.newestIn(main, noted)
	if err != nil || n == 0 && len(s.own) > 0 {
		return root, err == nil, err
	}
	root, err = s.common(n, b.base)
	return root, false, err
}

// strand holds the commits of a branch since its start, newest first. The history of main beside
// them may be trimmed on this host: other hosts trim for their own branches only.
type strand struct {
	merge // its rules
	since pando.ObjectID
	own   []own
}

// strand reads the commits of the branch.
func (b *Branch) strand(w *work) (strand, error) {
	s := strand{since: b.since, merge: merge{work: w, types: b.repo.types, branch: b.instance}}
	for id := b.head; id != b.since && !id.IsZero(); {
		c, err := w.commit(id)
		if err != nil {
			return s, err
		}
		s.own = append(s.own, own{id: id})
		if len(c.parents) > 1 { // it pulled
			s.own[len(s.own)-1].main = c.parents[1]
		}
		if len(c.parents) == 0 || w.edge(id) {
			break
		}
		id = c.parents[0]
	}
	at := b.since
	for n, c := range slices.Backward(s.own) {
		if !c.main.IsZero() {
			at = c.main
		}
		s.own[n].main = at
	}
	return s, nil
}

// newestIn returns the place in the strand of the newest commit that another commit contains, as
// its history on this host or a note shows. It returns the length of the strand if there is none.
func (s strand) newestIn(of, noted pando.ObjectID) (int, error) {
	if len(s.own) == 0 {
		return 0, nil
	}
	start, err := s.commit(s.since)
	if err != nil {
		return 0, err
	}
	known, err := s.ancestors(of, start.at)
	if err != nil {
		return 0, err
	}
	for n, c := range s.own {
		if _, in := known[c.id]; in || c.id == noted {
			return n, nil
		}
	}
	return len(s.own), nil
}

// common returns the common tree of two commits. One is a commit of main that contains the branch
// up to place n of its strand. The other contains the whole strand and a commit of main.
//
// Main only grows, so a commit of main contains all that the branch pulled before. If the branch
// pulled main after place n, the histories cross: both commits contain place n and the pulled main,
// and neither of these contains the other. Their merge is the base, and it needs the common tree of
// the two (recursive merge base).
func (s strand) common(n int, main pando.ObjectID) (pando.ObjectID, error) {
	if n == len(s.own) {
		return s.rootOf(main)
	}
	at := s.own[n]
	if at.main == main {
		return s.rootOf(at.id)
	}
	s.own = s.own[n:]
	older, err := s.newestIn(main, pando.ObjectID{})
	if err != nil {
		return main, err
	}
	if older == 0 { // the pulled main contains place n
		return s.rootOf(main)
	}
	under, err := s.common(older, at.main)
	if err != nil {
		return under, err
	}
	ours, err := s.rootOf(main)
	if err != nil {
		return ours, err
	}
	theirs, err := s.rootOf(at.id)
	if err != nil {
		return theirs, err
	}
	return s.folders("", under, ours, theirs)
}
