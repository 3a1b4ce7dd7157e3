package state

import (
	"bytes"
	"container/heap"
	"errors"
	"slices"
	"time"

	"pando.run/pando"
)

// Held has the commits of a state that are whole on another host, and the commits where its history
// begins.
type Held struct {
	Commits, Edge []pando.ObjectID
}

// Lacks has the objects that another host needs for some commits.
type Lacks struct {
	Objects []pando.ObjectID
	Edge    []pando.ObjectID // commits that lost their parents to a trim here
	Open    []pando.ObjectID // edges of the other host that the objects continue
}

// Missing returns the objects that the commits of want reach and that another host lacks. Commits
// that this host does not have are left out of held.
//
// It walks both histories from their newest commits, as time never falls from a parent to its child
// (see latest). A walk therefore ends where the histories meet. A history of the other host that
// begins after a wanted commit is continued to where this host's begins, so that its merges find
// the wanted commit in main. Trees are compared with those of the parents, so the cost is that of
// the changes.
func Missing(
	o pando.Objects, s pando.ServiceKey, want []pando.ObjectID, held Held,
) (out Lacks, err error) {
	d := difference{work: newWork(o, s), met: map[pando.ObjectID]*visited{},
		theirs: map[pando.ObjectID]bool{}, seen: map[pando.ObjectID]bool{}}
	for _, id := range held.Edge {
		d.theirs[id] = true
	}
	for _, id := range held.Commits {
		if err := d.push(id, true); err != nil && !errors.Is(err, pando.ErrNotFound) {
			return out, err
		}
	}
	for n, id := range want {
		c, err := d.commit(id)
		if err != nil {
			return out, err
		}
		if n == 0 || c.at.Before(d.oldest) {
			d.oldest = c.at
		}
	}
	for _, id := range want {
		if err := d.push(id, false); err != nil {
			return out, err
		}
	}
	commits, err := d.walk()
	if err != nil {
		return out, err
	}
	slices.Reverse(commits) // parents first
	for _, v := range commits {
		if d.edge(v.id) {
			out.Edge = append(out.Edge, v.id)
		}
		if err := d.trees(v); err != nil {
			return out, err
		}
	}
	out.Objects, out.Open = d.out, d.open
	return out, nil
}

// visited is a commit of one of the two histories.
type visited struct {
	commit
	id    pando.ObjectID
	known bool // the receiver has it
	done  bool // it has left the queue
}

type difference struct {
	*work
	queue  queue
	met    map[pando.ObjectID]*visited
	fresh  int                     // commits in the queue that the receiver lacks
	theirs map[pando.ObjectID]bool // edges of the receiver
	oldest time.Time               // of the wanted commits
	open   []pando.ObjectID
	seen   map[pando.ObjectID]bool
	out    []pando.ObjectID
}

// push adds a commit to the walk. A commit in the queue may turn out to be known. One that has left
// the queue is sent: more than needed, never less.
func (d *difference) push(id pando.ObjectID, known bool) error {
	if id.IsZero() {
		return nil
	}
	if v := d.met[id]; v != nil {
		if known && !v.known && !v.done {
			v.known = true
			d.fresh--
			heap.Fix(&d.queue, slices.Index(d.queue, v))
		}
		return nil
	}
	c, err := d.commit(id)
	if err != nil {
		return err
	}
	v := &visited{commit: c, id: id, known: known}
	d.met[id] = v
	if !known {
		d.fresh++
	}
	heap.Push(&d.queue, v)
	return nil
}

// walk returns the commits that the receiver lacks, newest first.
func (d *difference) walk() (out []*visited, err error) {
	for len(d.queue) > 0 && (d.fresh > 0 || !d.queue[0].at.Before(d.oldest)) {
		v := heap.Pop(&d.queue).(*visited)
		v.done = true
		if !v.known {
			d.fresh--
			out = append(out, v)
		}
		if d.edge(v.id) {
			continue
		}
		known := v.known
		if known && d.theirs[v.id] {
			if v.at.Before(d.oldest) {
				continue
			}
			d.open, known = append(d.open, v.id), false
		}
		for _, p := range v.parents {
			if err := d.push(p, known); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// trees adds a commit and the objects of its tree that none of its parents has.
func (d *difference) trees(v *visited) error {
	var bases []pando.ObjectID
	if !d.edge(v.id) {
		for _, p := range v.parents {
			root, err := d.rootOf(p)
			if err != nil {
				return err
			}
			bases = append(bases, root)
		}
	}
	if err := d.below(v.tree, bases); err != nil {
		return err
	}
	d.add(v.id)
	return nil
}

func (d *difference) add(id pando.ObjectID) {
	d.seen[id] = true
	d.out = append(d.out, id)
}

// below adds a folder and all below it, unless a base has it under the same name.
func (d *difference) below(id pando.ObjectID, bases []pando.ObjectID) error {
	if d.seen[id] || slices.Contains(bases, id) {
		return nil
	}
	all, err := d.entries(id)
	if err != nil {
		return err
	}
	d.seen[id] = true
	olds := make([]map[string]entry, 0, len(bases))
	for _, b := range bases {
		old, err := d.entries(b)
		if err != nil {
			return err
		}
		names := make(map[string]entry, len(old))
		for _, e := range old {
			names[e.name] = e
		}
		olds = append(olds, names)
	}
	for _, e := range all {
		var inside []pando.ObjectID
		same := false
		for _, old := range olds {
			o, ok := old[e.name]
			same = same || ok && o.id == e.id
			if ok && o.tree && e.tree {
				inside = append(inside, o.id)
			}
		}
		switch {
		case same || d.seen[e.id]:
		case e.tree:
			if err := d.below(e.id, inside); err != nil {
				return err
			}
		default:
			d.add(e.id)
		}
	}
	d.out = append(d.out, id)
	return nil
}

// queue has the newest commit first. Of two of one second, the known one is first.
type queue []*visited

func (q queue) Len() int { return len(q) }
func (q queue) Less(a, b int) bool {
	if c := q[b].at.Compare(q[a].at); c != 0 {
		return c < 0
	}
	if q[a].known != q[b].known {
		return q[a].known
	}
	return bytes.Compare(q[a].id[:], q[b].id[:]) < 0
}
func (q queue) Swap(a, b int) { q[a], q[b] = q[b], q[a] }

// Push implements heap.Interface.
func (q *queue) Push(v any) { *q = append(*q, v.(*visited)) }

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	last := len(*q) - 1
	v := (*q)[last]
	*q = (*q)[:last]
	return v
}
