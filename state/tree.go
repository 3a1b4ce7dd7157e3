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

// entry is one line of a tree. A zero id means that the place is empty.
type entry struct {
	name string
	tree bool
	id   pando.ObjectID
}

// compare is git's order of two entries: by name, with '/' added to a folder's name.
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

// after returns byte n of a name; n is at most its length. At the end it returns '/' for a folder
// and 0 for a file.
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

// tree is the body of a folder, or the rest of a body. It must not change: the names of its entries
// are parts of it.
type tree string

// read makes a tree of a body without a copy.
func read(body []byte) tree { return tree(unsafe.String(unsafe.SliceData(body), len(body))) }

var errTree = fmt.Errorf("%w: a tree that is not one of ours", pando.ErrInvalid)

// lead is the first line of a tree without its id.
type lead struct {
	name   string
	folder bool
	end    int // of the line; the id is its last part
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

// first returns the first entry and the rest of the tree. The tree must not be empty.
func (t tree) first() (e entry, after tree, err error) {
	l, err := t.lead()
	if err != nil {
		return e, t, err
	}
	e.name, e.tree = l.name, l.folder
	copy(e.id[:], t[l.end-len(e.id):])
	return e, t[l.end:], nil
}

// last returns the last entry. The tree must not be empty.
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

// only returns the entry of a tree with one line, or a zero entry for an empty tree.
func (t tree) only() (entry, error) {
	if t == "" {
		return entry{}, nil
	}
	e, _, err := t.first()
	return e, err
}

// entries returns all entries. It also checks their order.
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

// seek finds the file or folder of a name, or returns a zero entry. It drops the entries before it,
// so a walk in string order reads the tree once.
func (t *tree) seek(name string) (entry, error) {
	before, _, err := t.cut(name, false)
	if err != nil {
		return entry{}, err
	}
	*t = (*t)[len(before):]
	for ahead := *t; ahead != ""; { // names that continue with a byte below '/' sort before a folder
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

// edit returns the body with edits, at most one for a place. An edit replaces the entry in its
// place, or with a zero id removes it. The splices describe the same change in bytes.
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
		if s.Drop > 0 && s.Drop == s.Put { // the same name: only the id differs
			s.Keep += s.Put - len(e.id)
			s.Drop, s.Put = len(e.id), len(e.id)
		}
		splices, t = append(splices, s), behind
	}
	return append(out, t...), splices, nil
}

// cut returns the entries before a place and those after it.
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

// replaced adds the edits that replace the entry was by now. Either may be zero.
func replaced(edits []entry, was, now entry) []entry {
	if !was.id.IsZero() && (now.id.IsZero() || now.tree != was.tree) {
		edits = append(edits, entry{name: was.name, tree: was.tree})
	}
	if !now.id.IsZero() && now != was {
		edits = append(edits, now)
	}
	return edits
}
