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
func compare(a, b entry) int { return compareNames(a.name, b.name, a.tree, b.tree) }

func compareNames(a, b string, aTree, bTree bool) int {
	if aTree == bTree && a == b {
		return 0
	}
	n := min(len(a), len(b))
	if c := strings.Compare(a[:n], b[:n]); c != 0 {
		return c
	}
	return int(after(a, aTree, n)) - int(after(b, bTree, n))
}

// after is the byte of a name at n, which is at most its end: there a folder has a '/' and a file nothing.
func after(name string, tree bool, n int) byte {
	switch {
	case n < len(name):
		return name[n]
	case tree:
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

// lead is the first line of a tree without its id.
type lead struct {
	name   string
	folder bool
	end    int // of the line; its id lies before it
}

// lead reads the first line. The tree must not be empty.
func (t tree) lead() (l lead, err error) {
	head := len(modeFile) + 1
	if strings.HasPrefix(string(t), modeTree+" ") {
		head, l.folder = len(modeTree)+1, true
	} else if !strings.HasPrefix(string(t), modeFile+" ") {
		return lead{}, errTree
	}
	name := strings.IndexByte(string(t[head:]), 0)
	if l.end = head + name + 1 + len(pando.ObjectID{}); name < 1 || len(t) < l.end {
		return lead{}, errTree
	}
	l.name = string(t[head : head+name])
	return l, nil
}

// first is the first entry, and what follows it. The tree must not be empty.
func (t tree) first() (e entry, after tree, err error) {
	l, err := t.lead()
	if err != nil {
		return e, t, err
	}
	e.name, e.tree = l.name, l.folder
	copy(e.id[:], t[l.end-len(e.id):])
	return e, t[l.end:], nil
}

// last is the last entry. The tree must not be empty.
func (t tree) last() (entry, error) {
	for {
		l, err := t.lead()
		if err != nil {
			return entry{}, err
		}
		if l.end == len(t) {
			return t.only()
		}
		t = t[l.end:]
	}
}

// only is the entry of a tree of one line; a zero entry for none.
func (t tree) only() (entry, error) {
	if t == "" {
		return entry{}, nil
	}
	e, _, err := t.first()
	return e, err
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
	before, _, err := t.cut(name, false)
	if err != nil {
		return entry{}, err
	}
	*t = (*t)[len(before):]
	for ahead := *t; ahead != ""; { // a folder sorts behind what goes on with less than a '/'
		l, err := ahead.lead()
		if err != nil {
			return entry{}, err
		}
		if l.name == name {
			return ahead[:l.end].only()
		}
		if compareNames(l.name, name, l.folder, true) > 0 {
			break
		}
		ahead = ahead[l.end:]
	}
	return entry{}, nil
}

// edit returns the body with edits, one for a place at the most: an entry that replaces what stands in its place, or, with
// a zero id, takes it out. The splices say the same of the bytes.
func (t tree) edit(edits []entry) ([]byte, []pando.Splice, error) {
	if !slices.IsSortedFunc(edits, compare) {
		slices.SortFunc(edits, compare)
	}
	size := len(t)
	for _, e := range edits {
		size += len(modeFile) + 2 + len(e.name) + len(e.id)
	}
	out := make([]byte, 0, size)
	splices := make([]pando.Splice, 0, len(edits))
	for _, e := range edits {
		before, behind, err := t.cut(e.name, e.tree)
		if err != nil {
			return nil, nil, err
		}
		s := pando.Splice{Keep: len(before), Drop: len(t) - len(before) - len(behind)}
		out = append(out, before...)
		if begin := len(out); !e.id.IsZero() {
			out = e.add(out)
			s.Put = len(out) - begin
		}
		if s.Drop > 0 && s.Drop == s.Put { // the same name: only the id is another one
			s.Keep += s.Put - len(e.id)
			s.Drop, s.Put = len(e.id), len(e.id)
		}
		splices, t = append(splices, s), behind
	}
	return append(out, t...), splices, nil
}

// cut returns what sorts before a place, and what behind it.
func (t tree) cut(name string, folder bool) (before, behind tree, err error) {
	for at := 0; at < len(t); {
		rest := t[at:]
		l, err := rest.lead()
		if err != nil {
			return "", "", err
		}
		switch order := compareNames(l.name, name, l.folder, folder); {
		case order > 0:
			return t[:at], rest, nil
		case order == 0:
			return t[:at], rest[l.end:], nil
		}
		at += l.end
	}
	return t, "", nil
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
