// Package state is the mergeable state of services: a hash tree in git's object model, a branch per instance, and a typed
// three-way merge by path.
//
// It never touches a disk or a clock and never moves a service's main head: objects go to a pando.Objects, time comes as an
// argument, and main moves by the caller's compare-and-swap.
package state

import (
	"bytes"
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

func (e entry) sortKey() string {
	if e.tree {
		return e.name + "/"
	}
	return e.name
}

func (t tree) encode() []byte {
	slices.SortFunc(t, func(a, b entry) int { return strings.Compare(a.sortKey(), b.sortKey()) })
	var b bytes.Buffer
	for _, e := range t {
		mode := modeFile
		if e.tree {
			mode = modeTree
		}
		b.WriteString(mode + " " + e.name + "\x00")
		b.Write(e.id[:])
	}
	return b.Bytes()
}

func decodeTree(b []byte) (tree, error) {
	var t tree
	for len(b) > 0 {
		head, rest, ok := bytes.Cut(b, []byte{0})
		mode, name, ok2 := strings.Cut(string(head), " ")
		if !ok || !ok2 || name == "" || len(rest) < len(pando.ObjectID{}) || mode != modeFile && mode != modeTree {
			return nil, fmt.Errorf("%w: a tree that is not one of ours", pando.ErrInvalid)
		}
		t = append(t, entry{name: name, tree: mode == modeTree, id: pando.ObjectID(rest[:20])})
		b = rest[20:]
	}
	return t, nil
}

func (t tree) find(name string) (entry, bool) {
	for _, e := range t {
		if e.name == name {
			return e, true
		}
	}
	return entry{}, false
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
