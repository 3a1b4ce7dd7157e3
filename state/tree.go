package state

import (
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"pando.run/pando"
)

// Modes of tree entries, as git writes them.
const (
	modeFile = "100644"
	modeTree = "40000"
)

// entry is one line of a tree; with a zero id it says that nothing stands in that place.
type entry struct {
	name string
	tree bool
	id   pando.ObjectID
}

// compare is git's order of two entries: by name, a folder's name as if it ended in '/'.
func compare(a, b entry) int {
	if a.tree == b.tree && a.name == b.name {
		return 0
	}
	n := min(len(a.name), len(b.name))
	if c := strings.Compare(a.name[:n], b.name[:n]); c != 0 {
		return c
	}
	return int(a.after(n)) - int(b.after(n))
}

// after is the byte of a name at n, which is at most its end: there a folder has a '/' and a file nothing.
func (e entry) after(n int) byte {
	switch {
	case n < len(e.name):
		return e.name[n]
	case e.tree:
		return '/'
	}
	return 0
}

// add appends a line to a tree's body.
func (e entry) add(b []byte) []byte {
	mode := modeFile
	if e.tree {
		mode = modeTree
	}
	b = append(append(append(append(b, mode...), ' '), e.name...), 0)
	return append(b, e.id[:]...)
}

// tree is the body of a folder, or of one of which the first lines are read already. Nobody changes it: the names of its
// entries are parts of it.
type tree string

// read looks at a body.
func read(body []byte) tree { return tree(unsafe.String(unsafe.SliceData(body), len(body))) }

var errTree = fmt.Errorf("%w: a tree that is not one of ours", pando.ErrInvalid)

// first is the first entry, and what follows it. The tree must not be empty.
func (t tree) first() (e entry, after tree, err error) {
	head := len(modeFile) + 1
	if strings.HasPrefix(string(t), modeTree+" ") {
		head, e.tree = len(modeTree)+1, true
	} else if !strings.HasPrefix(string(t), modeFile+" ") {
		return e, t, errTree
	}
	name := strings.IndexByte(string(t[head:]), 0)
	end := head + name + 1 + len(e.id)
	if name < 1 || len(t) < end {
		return e, t, errTree
	}
	e.name = string(t[head : head+name])
	copy(e.id[:], t[head+name+1:])
	return e, t[end:], nil
}

// entries are all entries. It also checks their order.
func (t tree) entries() ([]entry, error) {
	all := make([]entry, 0, len(t)/(len(modeFile)+len(pando.ObjectID{})+8))
	for t != "" {
		e, after, err := t.first()
		if err != nil {
			return nil, err
		}
		if len(all) > 0 && compare(all[len(all)-1], e) >= 0 {
			return nil, errTree
		}
		all, t = append(all, e), after
	}
	return all, nil
}

// seek finds what stands for a name, be it a file or a folder; a zero entry for nothing. It drops what sorts before, so
// that names that are sought in the order of strings are found in one walk.
func (t *tree) seek(name string) (entry, error) {
	before, _, err := t.cut(entry{name: name})
	if err != nil {
		return entry{}, err
	}
	*t = (*t)[len(before):]
	for ahead := *t; ahead != ""; { // a folder sorts behind what goes on with less than a '/'
		e, after, err := ahead.first()
		switch {
		case err != nil:
			return entry{}, err
		case e.name == name:
			return e, nil
		case compare(e, entry{name: name, tree: true}) > 0:
			return entry{}, nil
		}
		ahead = after
	}
	return entry{}, nil
}

// edit returns the body with edits, one for a place at the most: an entry that replaces what stands in its place, or, with
// a zero id, takes it out.
func (t tree) edit(edits []entry) ([]byte, error) {
	if !slices.IsSortedFunc(edits, compare) {
		slices.SortFunc(edits, compare)
	}
	size := len(t)
	for _, e := range edits {
		size += len(modeFile) + 2 + len(e.name) + len(e.id)
	}
	out := make([]byte, 0, size)
	for _, e := range edits {
		before, behind, err := t.cut(e)
		if err != nil {
			return nil, err
		}
		if out, t = append(out, before...), behind; !e.id.IsZero() {
			out = e.add(out)
		}
	}
	return append(out, t...), nil
}

// cut returns what sorts before a place, and what behind it.
func (t tree) cut(place entry) (before, behind tree, err error) {
	behind = t
	for behind != "" {
		e, after, err := behind.first()
		if err != nil {
			return "", "", err
		}
		order := compare(e, place)
		if order > 0 {
			break
		}
		if order == 0 {
			return t[:len(t)-len(behind)], after, nil
		}
		behind = after
	}
	return t[:len(t)-len(behind)], behind, nil
}

// replaced adds to edits that an entry stands, from now on, for the name that another stood for; either may be zero.
func replaced(edits []entry, was, now entry) []entry {
	if !was.id.IsZero() && (now.id.IsZero() || now.tree != was.tree) {
		edits = append(edits, entry{name: was.name, tree: was.tree})
	}
	if !now.id.IsZero() && now != was {
		edits = append(edits, now)
	}
	return edits
}
