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

func (t tree) encode() []byte {
	size := 0
	for _, e := range t {
		size += len(modeFile) + 2 + len(e.name) + len(e.id)
	}
	b := make([]byte, 0, size)
	for _, e := range t {
		mode := modeFile
		if e.tree {
			mode = modeTree
		}
		b = append(append(append(append(b, mode...), ' '), e.name...), 0)
		b = append(b, e.id[:]...)
	}
	return b
}

func decodeTree(b []byte) (tree, error) {
	bad := fmt.Errorf("%w: a tree that is not one of ours", pando.ErrInvalid)
	const hash = len(pando.ObjectID{})
	t := make(tree, 0, len(b)/(len(modeFile)+hash+8))
	for rest := string(b); rest != ""; { // the names are parts of one string
		var e entry
		after, file := strings.CutPrefix(rest, modeFile+" ")
		if !file {
			if after, e.tree = strings.CutPrefix(rest, modeTree+" "); !e.tree {
				return nil, bad
			}
		}
		end := strings.IndexByte(after, 0)
		if end < 1 || len(after) < end+1+hash {
			return nil, bad
		}
		e.name = after[:end]
		copy(e.id[:], after[end+1:])
		if len(t) > 0 && compare(t[len(t)-1], e) >= 0 {
			return nil, bad
		}
		t, rest = append(t, e), after[end+1+hash:]
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

// edit returns a tree with names replaced. A name that is edited itself is not changed by its neighbour.
func (t tree) edit(edits []edit) tree {
	slices.SortFunc(edits, func(a, b edit) int { return strings.Compare(a.name, b.name) })
	edited := make(map[string]entry, len(edits))
	for _, d := range edits {
		edited[d.name] = entry{}
		for _, e := range d.now {
			edited[e.name] = e
		}
	}
	news := make(tree, 0, len(edited))
	for _, e := range edited {
		if !e.id.IsZero() {
			news = append(news, e)
		}
	}
	slices.SortFunc(news, compare)
	out := make(tree, 0, len(t)+len(news))
	for n, e := range t {
		if len(edited) == 0 && len(news) == 0 {
			return append(out, t[n:]...)
		}
		for len(news) > 0 && compare(news[0], e) < 0 {
			out, news = append(out, news[0]), news[1:]
		}
		if _, ok := edited[e.name]; ok {
			delete(edited, e.name)
		} else {
			out = append(out, e)
		}
	}
	return append(out, news...)
}

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
