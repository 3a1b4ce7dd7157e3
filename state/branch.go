package state

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"sync"

	"pando.run/pando"
)

// Branch is one instance's view of the state. It holds the commits since it last equalled main, and
// the writes since its last commit. Those are in memory and in its journal.
type Branch struct {
	repo     *Repo
	instance pando.InstanceID

	mu sync.Mutex
	place
	stored  pando.ObjectID            // the head in the store
	failed  pando.ObjectID            // the head of a write with an error: the store may have it
	owed    map[string]pando.ObjectID // refs for the next write, as noted by Pushed
	offered pando.ObjectID            // the head that the last merge took into main
	unsure  bool                      // main may contain our commits that are newer than base
	uncommitted
}

// Instance returns the instance of the branch.
func (b *Branch) Instance() pando.InstanceID { return b.instance }

// Head returns the branch's newest commit.
func (b *Branch) Head() pando.ObjectID {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.head
}

// Dirty reports whether the branch has uncommitted writes.
func (b *Branch) Dirty() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.pending) > 0
}

// Merged reports whether main contains every write of the branch, committed or not.
func (b *Branch) Merged(main pando.ObjectID) (bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.pending) > 0 {
		return false, nil
	}
	if b.head == b.base {
		return true, nil
	}
	return b.repo.work().isIn(b.head, main)
}

// Put replaces the value of a path. A log's value is the whole log.
func (b *Branch) Put(p string, value []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.journalled(p, written{Put: p, Value: value}, func() error { return b.put(p, value) })
}

// Delete removes a path.
func (b *Branch) Delete(p string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.journalled(p, written{Delete: p}, func() error { return b.remove(p) })
}

// Patch applies a delta by the path's type. A counter takes an integer to add, a log takes lines to
// append, a set takes "+member" and "-member" lines. Its cost is that of the delta.
func (b *Branch) Patch(p string, delta []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.journalled(p, written{Patch: p, Value: delta}, func() error { return b.patch(p, delta) })
}

// Get returns the value of a path as this instance sees it.
func (b *Branch) Get(p string) (pando.StateValue, error) {
	if err := CheckPath(p); err != nil {
		return pando.StateValue{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.repo.work()
	root, err := b.applied(w)
	if err != nil {
		return pando.StateValue{}, err
	}
	return b.repo.read(w, root, p)
}

// List returns the paths with a prefix, in order. A log is one path; its Bytes stay zero.
func (b *Branch) List(prefix string) ([]pando.StateEntry, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.repo.work()
	root, err := b.applied(w)
	if err != nil {
		return nil, err
	}
	out := []pando.StateEntry{}
	err = b.repo.list(w, root, "", prefix, &out)
	slices.SortFunc(out, func(a, b pando.StateEntry) int { return strings.Compare(a.Path, b.Path) })
	return out, err
}

func (r *Repo) list(w *work, folder pando.ObjectID, at, prefix string,
	out *[]pando.StateEntry) error {
	t, err := w.entries(folder)
	if err != nil {
		return err
	}
	for _, e := range t {
		p := at + e.name
		if !strings.HasPrefix(p, prefix) && !strings.HasPrefix(prefix, p+"/") {
			continue
		}
		typ := r.types.typeOf(p)
		if e.tree && typ != pando.StateLog {
			if err := r.list(w, e.id, p+"/", prefix, out); err != nil {
				return err
			}
			continue
		}
		v := pando.StateEntry{Path: p, Type: typ}
		if !e.tree {
			body, err := w.blob(e.id)
			if err != nil {
				return err
			}
			v.Bytes = int64(len(body))
		}
		*out = append(*out, v)
	}
	return nil
}

// applied returns the branch's tree with the pending changes on top. The caller holds the lock.
func (b *Branch) applied(w *work) (pando.ObjectID, error) {
	root, err := w.rootOf(b.head)
	if err != nil {
		return root, err
	}
	return b.repo.apply(w, root, "", b.pending)
}

// below is the change of one name in a folder: of the name itself, or of paths below it.
type below struct {
	own    *change
	deeper map[string]*change
}

// apply applies changes to a folder, by their path below it. A name that gets both a value and
// paths below it becomes a folder.
func (r *Repo) apply(w *work, folder pando.ObjectID, at string,
	changes map[string]*change) (pando.ObjectID, error) {
	if len(changes) == 0 {
		return folder, nil
	}
	t, err := w.folder(folder)
	if err != nil {
		return folder, err
	}
	names := map[string]below{}
	for p, c := range changes {
		head, rest, deeper := strings.Cut(p, "/")
		of := names[head]
		switch {
		case !deeper:
			of.own = c
		case of.deeper == nil:
			of.deeper = map[string]*change{rest: c}
		default:
			of.deeper[rest] = c
		}
		names[head] = of
	}
	rest := t
	edits := make([]entry, 0, len(names))
	for _, name := range slices.Sorted(maps.Keys(names)) {
		old, err := rest.seek(name)
		if err != nil {
			return folder, err
		}
		now, err := r.applyName(w, at+name, old, names[name])
		if err != nil {
			return folder, err
		}
		now.name = name
		edits = replaced(edits, old, now)
	}
	body, splices, err := t.edit(edits)
	if err != nil {
		return folder, err
	}
	return w.derive(folder, body, splices), nil
}

func (r *Repo) applyName(w *work, p string, old entry, c below) (now entry, err error) {
	now = old
	if c.own != nil {
		if now, err = r.applyOne(w, p, old, c.own); err != nil || len(c.deeper) == 0 {
			return now, err
		}
		old = entry{}
	}
	if !old.tree {
		old = entry{}
	}
	id, err := r.apply(w, old.id, p+"/", c.deeper)
	if err != nil {
		return now, err
	}
	t, err := w.folder(id)
	if err != nil || t != "" {
		return entry{tree: true, id: id}, err
	}
	if c.own == nil && old.tree { // the folder is empty now
		return entry{}, nil
	}
	return now, nil
}

func (r *Repo) applyOne(w *work, p string, old entry, c *change) (entry, error) {
	typ := r.types.typeOf(p)
	if c.set {
		old = entry{}
		if !c.gone && typ != pando.StateLog {
			old = entry{id: w.put(pando.BlobObject, c.value)}
		}
	}
	var value []byte
	if !old.id.IsZero() && !old.tree {
		var err error
		if value, err = w.blob(old.id); err != nil {
			return old, err
		}
	}
	switch {
	case typ == pando.StateLog:
		id := old.id
		if !old.tree {
			id = pando.ObjectID{}
		}
		id, err := w.append(id, append(bytes.Clone(c.value), c.add...))
		return entry{tree: true, id: id}, err
	case typ == pando.StateCounter && c.add != nil:
		return entry{id: w.put(pando.BlobObject, []byte(added(value, c.add)))}, nil
	case c.plus != nil:
		m := members(value)
		for v := range c.plus {
			m[v] = true
		}
		for v := range c.minus {
			delete(m, v)
		}
		return entry{id: w.put(pando.BlobObject, setOf(m))}, nil
	}
	return old, nil
}
