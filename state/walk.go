package state

import (
	"fmt"
	"strings"

	"pando.run/pando"
)

// Walk visits the objects that commits reach, each object once over all calls. History ends at a
// commit of Edge: its tree counts, its parents do not.
type Walk struct {
	Objects pando.Objects
	Edge    map[pando.ObjectID]bool
	seen    map[pando.ObjectID]bool
}

// Saw reports whether the walk has met an object.
func (w *Walk) Saw(id pando.ObjectID) bool { return w.seen[id] }

// From visits every object that the heads reach and that no earlier call has met: a commit before
// its tree, a folder before its entries. It names blobs without reading them. visit may be nil.
func (w *Walk) From(
	heads []pando.ObjectID, visit func(pando.ObjectKind, pando.ObjectID) error,
) error {
	return w.walk(heads, visit, true)
}

// Commits is From for commits only.
func (w *Walk) Commits(
	heads []pando.ObjectID, visit func(pando.ObjectKind, pando.ObjectID) error,
) error {
	return w.walk(heads, visit, false)
}

func (w *Walk) walk(
	heads []pando.ObjectID, visit func(pando.ObjectKind, pando.ObjectID) error, trees bool,
) error {
	queue := append([]pando.ObjectID(nil), heads...)
	for ; len(queue) > 0; queue = queue[1:] {
		id := queue[0]
		if !w.first(id) {
			continue
		}
		c, err := readCommit(w.Objects, id)
		if err != nil {
			return err
		}
		if visit != nil {
			if err := visit(pando.CommitObject, id); err != nil {
				return err
			}
		}
		if trees {
			if err := w.folder(c.tree, visit); err != nil {
				return err
			}
		}
		if !w.Edge[id] {
			queue = append(queue, c.parents...)
		}
	}
	return nil
}

func (w *Walk) first(id pando.ObjectID) bool {
	if w.seen == nil {
		w.seen = map[pando.ObjectID]bool{}
	}
	if w.seen[id] {
		return false
	}
	w.seen[id] = true
	return true
}

func (w *Walk) folder(id pando.ObjectID, visit func(pando.ObjectKind, pando.ObjectID) error) error {
	if !w.first(id) {
		return nil
	}
	if visit != nil {
		if err := visit(pando.TreeObject, id); err != nil {
			return err
		}
	}
	t, err := newWork(w.Objects, pando.ServiceKey{}).entries(id)
	if err != nil {
		return err
	}
	for _, e := range t {
		if e.tree {
			err = w.folder(e.id, visit)
		} else if w.first(e.id) && visit != nil {
			err = visit(pando.BlobObject, e.id)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func readCommit(o pando.Objects, id pando.ObjectID) (commit, error) {
	kind, body, err := o.Object(id)
	if err != nil {
		return commit{}, fmt.Errorf("read commit %s: %w", id, err)
	}
	if kind != pando.CommitObject {
		return commit{}, fmt.Errorf("%w: object %s is a %s, not a commit", pando.ErrInvalid, id, kind)
	}
	return decodeCommit(body)
}

// Parents returns the parents of a commit, main's side first.
func Parents(o pando.Objects, id pando.ObjectID) ([]pando.ObjectID, error) {
	c, err := readCommit(o, id)
	return c.parents, err
}

// Branches returns the newest commit of every branch on this host, by instance.
func Branches(o pando.Objects, s pando.ServiceKey) (map[pando.InstanceID]pando.ObjectID, error) {
	prefix := refOf(s, branchRef, "")
	refs, err := o.Refs(prefix)
	if err != nil {
		return nil, fmt.Errorf("list the branches of %s: %w", s, err)
	}
	out := make(map[pando.InstanceID]pando.ObjectID, len(refs))
	for name, id := range refs {
		out[pando.InstanceID(strings.TrimPrefix(name, prefix))] = id
	}
	return out, nil
}

// Edge returns the commits on this host that lost their parents to a trim.
func Edge(o pando.Objects, s pando.ServiceKey) (map[pando.ObjectID]bool, error) {
	refs, err := o.Refs(refOf(s, edgeRef, ""))
	if err != nil {
		return nil, fmt.Errorf("read where the history of %s begins: %w", s, err)
	}
	out := make(map[pando.ObjectID]bool, len(refs))
	for _, id := range refs {
		out[id] = true
	}
	return out, nil
}
