// Package state is the mergeable state of services. It has a hash tree in git's object model, a
// branch per instance, and a typed three-way merge by path.
//
// It never touches a disk or a clock and never moves a service's main head. Objects go to a
// pando.Objects, time is an argument, and the caller moves main by compare-and-swap.
package state

import (
	"crypto/sha1"
	"encoding/hex"
	"fmt"
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

// commit is one version of a whole tree, with its parents.
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
	who := fmt.Sprintf("%s <%s@%s.%s.pando> %d +0000", c.author, c.author, s.Name, s.Tenant,
		c.at.Unix())
	fmt.Fprintf(&b, "author %s\ncommitter %s\n\n%s\n", who, who, c.message)
	return []byte(b.String())
}

var errCommit = fmt.Errorf("%w: a commit that is not one of ours", pando.ErrInvalid)

// decodeCommit reads a body. The body must not change afterwards: the message is a part of it.
func decodeCommit(b []byte) (commit, error) {
	var c commit
	head, message, ok := strings.Cut(unsafe.String(unsafe.SliceData(b), len(b)), "\n\n")
	if !ok {
		return c, errCommit
	}
	c.message = strings.TrimSuffix(message, "\n")
	for line := range strings.SplitSeq(head, "\n") {
		word, rest, _ := strings.Cut(line, " ")
		switch word {
		case "tree", "parent":
			id, err := parseID(rest)
			if err != nil {
				return c, errCommit
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
				return c, errCommit
			}
			c.author, c.at = pando.InstanceID(name), time.Unix(n, 0).UTC()
		}
	}
	if c.tree.IsZero() {
		return c, errCommit
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
