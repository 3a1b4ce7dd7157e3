// Package state is the mergeable state of services: a hash tree in git's object model, a branch per instance, and a typed
// three-way merge by path.
//
// It never touches a disk or a clock and never moves a service's main head: objects go to a pando.Objects, time comes as an
// argument, and main moves by the caller's compare-and-swap.
package state

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"pando.run/pando"
)

// ID is git's name of an object: the SHA-1 of its kind, its length and its body.
func ID(kind pando.ObjectKind, body []byte) pando.ObjectID {
	h := sha1.New()
	fmt.Fprintf(h, "%s %d\x00", kind, len(body))
	h.Write(body)
	return pando.ObjectID(h.Sum(nil))
}

// Modes of tree entries, as git writes them.
const (
	modeFile = "100644"
	modeTree = "40000"
)

// entry is one line of a tree.
type entry struct {
	name string
	tree bool
	id   pando.ObjectID
}

// tree is a folder, in git's order: by name, a folder's name as if it ended in '/'.
type tree []entry

// compare is git's order of two entries.
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

// lines is the body of a tree of which the first entries are read already.
type lines string

// read looks at a body, which nobody changes: the names of its entries are parts of it.
func read(body []byte) lines { return lines(unsafe.String(unsafe.SliceData(body), len(body))) }

var errTree = fmt.Errorf("%w: a tree that is not one of ours", pando.ErrInvalid)

// first is the first entry, and what follows it. The body must not be empty.
func (l lines) first() (e entry, after lines, err error) {
	head := len(modeFile) + 1
	if strings.HasPrefix(string(l), modeTree+" ") {
		head, e.tree = len(modeTree)+1, true
	} else if !strings.HasPrefix(string(l), modeFile+" ") {
		return e, l, errTree
	}
	name := strings.IndexByte(string(l[head:]), 0)
	end := head + name + 1 + len(e.id)
	if name < 1 || len(l) < end {
		return e, l, errTree
	}
	e.name = string(l[head : head+name])
	copy(e.id[:], l[head+name+1:])
	return e, l[end:], nil
}

func decodeTree(b []byte) (t tree, err error) {
	t = make(tree, 0, len(b)/(len(modeFile)+len(pando.ObjectID{})+8))
	for rest := read(b); rest != ""; {
		var e entry
		if e, rest, err = rest.first(); err != nil {
			return nil, err
		}
		if len(t) > 0 && compare(t[len(t)-1], e) >= 0 {
			return nil, errTree
		}
		t = append(t, e)
	}
	return t, nil
}

// find looks a name up, be it a file's or a folder's.
func (t tree) find(name string) (entry, bool) {
	for _, folder := range []bool{false, true} {
		if n, ok := slices.BinarySearchFunc(t, entry{name: name, tree: folder}, compare); ok {
			return t[n], true
		}
	}
	return entry{}, false
}

// edit says what stands for a name from now on: nothing, one entry, or that and another beside it, whose name sorts after.
type edit struct {
	name string
	now  []entry
}

// edit returns the body of a tree with names replaced. A name that is edited itself is not changed by its neighbour.
func (t tree) edit(edits []edit) []byte {
	edited := replacements(edits)
	news := make(tree, 0, len(edited))
	for _, e := range edited {
		if !e.id.IsZero() {
			news = append(news, e)
		}
	}
	slices.SortFunc(news, compare)
	out := make([]byte, 0, t.size()+news.size())
	next := 0 // of edited: the first that is not before the files seen so far
	for _, e := range t {
		for len(news) > 0 && compare(news[0], e) < 0 {
			out, news = news[0].add(out), news[1:]
		}
		at := next
		if e.tree { // sorts as if it ended in '/', not among the plain names
			at, _ = slices.BinarySearchFunc(edited, e, byName)
		} else {
			for at < len(edited) && edited[at].name < e.name {
				at++
			}
			next = at
		}
		if at == len(edited) || edited[at].name != e.name {
			out = e.add(out)
		}
	}
	for _, e := range news {
		out = e.add(out)
	}
	return out
}

// size bounds the length of a tree's body.
func (t tree) size() (n int) {
	for _, e := range t {
		n += len(modeFile) + 2 + len(e.name) + len(e.id)
	}
	return n
}

// replacements are the names that edits touch, sorted as plain names, each with what stands for it from now on; a zero id
// for nothing.
func replacements(edits []edit) []entry {
	slices.SortFunc(edits, func(a, b edit) int { return strings.Compare(a.name, b.name) })
	all := make([]entry, 0, len(edits)+len(edits)/2)
	for _, d := range edits {
		all = append(all, entry{name: d.name})
		all = append(all, d.now...)
	}
	slices.SortStableFunc(all, byName)
	last := all[:0]
	for n, e := range all {
		if n+1 == len(all) || all[n+1].name != e.name {
			last = append(last, e)
		}
	}
	return last
}

func byName(a, b entry) int { return strings.Compare(a.name, b.name) }

// commit is one state of a whole tree, with where it came from.
type commit struct {
	tree    pando.ObjectID
	parents []pando.ObjectID
	author  pando.InstanceID
	at      time.Time // to the second
	message string
}

func (c commit) encode(s pando.ServiceKey) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "tree %s\n", c.tree)
	for _, p := range c.parents {
		fmt.Fprintf(&b, "parent %s\n", p)
	}
	who := fmt.Sprintf("%s <%s@%s.%s.pando> %d +0000", c.author, c.author, s.Name, s.Tenant, c.at.Unix())
	fmt.Fprintf(&b, "author %s\ncommitter %s\n\n%s\n", who, who, c.message)
	return []byte(b.String())
}

func decodeCommit(b []byte) (commit, error) {
	var c commit
	bad := fmt.Errorf("%w: a commit that is not one of ours", pando.ErrInvalid)
	head, message, ok := strings.Cut(string(b), "\n\n")
	if !ok {
		return c, bad
	}
	c.message = strings.TrimSuffix(message, "\n")
	for line := range strings.SplitSeq(head, "\n") {
		word, rest, _ := strings.Cut(line, " ")
		switch word {
		case "tree", "parent":
			id, err := parseID(rest)
			if err != nil {
				return c, bad
			}
			if word == "tree" {
				c.tree = id
			} else {
				c.parents = append(c.parents, id)
			}
		case "author":
			name, mail, ok := strings.Cut(rest, " <")
			_, when, ok2 := strings.Cut(mail, "> ")
			seconds, _, _ := strings.Cut(when, " ")
			n, err := strconv.ParseInt(seconds, 10, 64)
			if !ok || !ok2 || err != nil {
				return c, bad
			}
			c.author, c.at = pando.InstanceID(name), time.Unix(n, 0).UTC()
		}
	}
	if c.tree.IsZero() {
		return c, bad
	}
	return c, nil
}

func parseID(s string) (pando.ObjectID, error) {
	var id pando.ObjectID
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != len(id) {
		return id, fmt.Errorf("%w: object id %q", pando.ErrInvalid, s)
	}
	return pando.ObjectID(b), nil
}
