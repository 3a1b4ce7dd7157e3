package state

import (
	"fmt"
	"time"

	"pando.run/pando"
)

// work is one operation on the tree. It reads from the store, and keeps new objects until all can
// be written at once.
type work struct {
	objects pando.Objects
	service pando.ServiceKey
	made    map[pando.ObjectID]int // new objects, by index in saved
	saved   []pando.Object
}

func newWork(o pando.Objects, s pando.ServiceKey) *work {
	return &work{objects: o, service: s, made: map[pando.ObjectID]int{}}
}

func (w *work) put(kind pando.ObjectKind, body []byte) pando.ObjectID {
	return w.save(pando.Object{Kind: kind, Body: body})
}

// derive makes a folder by splices of another one.
func (w *work) derive(from pando.ObjectID, body []byte, by []pando.Splice) pando.ObjectID {
	return w.save(pando.Object{Kind: pando.TreeObject, Body: body, Base: from, Splices: by})
}

func (w *work) save(o pando.Object) pando.ObjectID {
	o.ID = ID(o.Kind, o.Body)
	if _, ok := w.made[o.ID]; !ok {
		w.made[o.ID] = len(w.saved)
		w.saved = append(w.saved, o)
	}
	return o.ID
}

func (w *work) get(want pando.ObjectKind, id pando.ObjectID) ([]byte, error) {
	if n, ok := w.made[id]; ok {
		return w.saved[n].Body, nil
	}
	kind, body, err := w.objects.Object(id)
	if err != nil {
		return nil, fmt.Errorf("read %s %s: %w", want, id, err)
	}
	if kind != want {
		return nil, fmt.Errorf("%w: object %s is a %s, not a %s", pando.ErrInvalid, id, kind, want)
	}
	return body, nil
}

func (w *work) blob(id pando.ObjectID) ([]byte, error) { return w.get(pando.BlobObject, id) }

// folder reads a tree. The zero id is the empty tree.
func (w *work) folder(id pando.ObjectID) (tree, error) {
	if id.IsZero() {
		return "", nil
	}
	body, err := w.get(pando.TreeObject, id)
	return read(body), err
}

// entries reads the entries of a folder.
func (w *work) entries(id pando.ObjectID) ([]entry, error) {
	t, err := w.folder(id)
	if err != nil {
		return nil, err
	}
	return t.entries()
}

// child returns the entry of a name in a folder, or a zero entry.
func (w *work) child(folder pando.ObjectID, name string) (entry, error) {
	t, err := w.folder(folder)
	if err != nil {
		return entry{}, err
	}
	return t.seek(name)
}

func (w *work) commit(id pando.ObjectID) (commit, error) {
	b, err := w.get(pando.CommitObject, id)
	if err != nil {
		return commit{}, err
	}
	return decodeCommit(b)
}

// rootOf returns the tree of a commit; the zero id has the empty tree.
func (w *work) rootOf(id pando.ObjectID) (pando.ObjectID, error) {
	if id.IsZero() {
		return pando.ObjectID{}, nil
	}
	c, err := w.commit(id)
	return c.tree, err
}

// isIn reports whether a commit is main or one of its ancestors.
func (w *work) isIn(id, main pando.ObjectID) (bool, error) {
	if main.IsZero() || id.IsZero() {
		return false, nil
	}
	c, err := w.commit(id)
	if err != nil {
		return false, err
	}
	before, err := w.ancestors(main, c.at)
	_, ok := before[id]
	return ok, err
}

// ancestors returns a commit and its ancestors back to a time, each with its parents.
func (w *work) ancestors(
	of pando.ObjectID, until time.Time,
) (map[pando.ObjectID][]pando.ObjectID, error) {
	seen := map[pando.ObjectID][]pando.ObjectID{}
	for queue := []pando.ObjectID{of}; len(queue) > 0; queue = queue[1:] {
		id := queue[0]
		if _, ok := seen[id]; ok {
			continue
		}
		c, err := w.commit(id)
		if err != nil {
			return nil, err
		}
		if c.at.Before(until) {
			continue
		}
		seen[id] = nil
		if !w.edge(id) {
			seen[id] = c.parents
			queue = append(queue, c.parents...)
		}
	}
	return seen, nil
}

// edge reports whether history was trimmed behind a commit.
func (w *work) edge(id pando.ObjectID) bool {
	_, err := w.objects.Ref(refOf(w.service, edgeRef, id.String()))
	return err == nil
}
