package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"pando.run/pando"
)

// Repo is the state of one service on one host. It may be used from many goroutines.
type Repo struct {
	objects pando.Objects
	service pando.ServiceKey
	types   types

	journals pando.Journals // nil: uncommitted writes end with the agent
	shared   func() bool    // another host may merge a branch of this one; nil: never
}

// Open returns the state of a service. The map of has the merge type of each pattern; patterns may
// have *, ?, [] and **. An exact path wins, then the longest pattern. A path without a match is
// last-writer-wins.
func Open(objects pando.Objects, service pando.ServiceKey, of map[string]pando.StateType) *Repo {
	return &Repo{objects: objects, service: service, types: newTypes(of)}
}

// Shared makes the branches look in main for commits that another host has merged on their behalf,
// whenever shared returns true.
func (r *Repo) Shared(shared func() bool) *Repo {
	r.shared = shared
	return r
}

// Kinds of refs. A ref is "<tenant>/<service>/<kind>/<name>".
const (
	branchRef = "branch" // by instance: the newest commit of its branch
	baseRef   = "base"   // by instance: the newest commit of main that its branch contains
	sinceRef  = "since"  // by instance: the commit of main where its branch last restarted
	markRef   = "mark"   // by instance: the commit that its journal names, see uncommitted.mark
	offerRef  = "offer"  // by instance and commit: an offer to main without an answer yet
	mergedRef = "merged" // by instance: the newest commit of its branch that another host merged
	joinedRef = "joined" // not a commit: when this host began to keep a copy, see Enroll
	mainRef   = "main"   // main, as this host last received it
	edgeRef   = "edge"   // by commit: history starts here, its parents were trimmed
	mainName  = "head"
)

func refsOf(s pando.ServiceKey) string { return string(s.Tenant) + "/" + string(s.Name) + "/" }

func refOf(s pando.ServiceKey, kind, name string) string { return refsOf(s) + kind + "/" + name }

func (r *Repo) ref(kind, name string) string { return refOf(r.service, kind, name) }

func (r *Repo) work() *work { return newWork(r.objects, r.service) }

func (r *Repo) lookup(ref string) (pando.ObjectID, error) {
	id, err := r.objects.Ref(ref)
	if errors.Is(err, pando.ErrNotFound) {
		return pando.ObjectID{}, nil
	}
	return id, err
}

// Born returns the branch of an instance: a new one from main, or the one that a former agent left.
// An old branch restarts from main if main contains it: its push succeeded, only the note was not
// written.
func (r *Repo) Born(ctx context.Context, i pando.InstanceID, main pando.ObjectID) (*Branch, error) {
	b := &Branch{repo: r, instance: i}
	b.uncommitted = uncommitted{author: i, types: r.types, pending: map[string]*change{}}
	b.unmark = func() { b.oweRef(r.ref(markRef, string(i)), pando.ObjectID{}) }
	var err error
	for kind, id := range map[string]*pando.ObjectID{
		branchRef: &b.head, baseRef: &b.base, sinceRef: &b.since,
	} {
		if *id, err = r.lookup(r.ref(kind, string(i))); err != nil {
			return nil, fmt.Errorf("open the branch of %s: %w", i, err)
		}
	}
	w := r.work()
	if !b.head.IsZero() {
		b.stored, b.unsure = b.head, true
		if pushed, err := w.isIn(b.head, main); err == nil && pushed {
			b.place, b.unsure = anew(main), false
			if err := b.owe(main); err != nil {
				return nil, err
			}
		}
		return b, b.recall(r.journals, r.objects)
	}
	if main.IsZero() {
		main = w.put(pando.CommitObject, commit{tree: w.put(pando.TreeObject, nil), author: "pando",
			at: time.Unix(0, 0), message: "empty"}.encode(r.service))
	}
	if err := b.move(ctx, w, anew(main)); err != nil {
		return nil, err
	}
	return b, b.recall(r.journals, r.objects)
}

// Log returns the newest commits of main, newest first.
func (r *Repo) Log(main pando.ObjectID, most int) ([]pando.StateCommit, error) {
	w := r.work()
	out := []pando.StateCommit{}
	for id := main; !id.IsZero() && len(out) < most; {
		c, err := w.commit(id)
		if err != nil {
			return nil, err
		}
		message, rest, _ := strings.Cut(c.message, "\n")
		line := pando.StateCommit{Commit: id, Parents: c.parents, Instance: c.author, Message: message,
			At: c.at.Unix()}
		for l := range strings.SplitSeq(rest, "\n") {
			if path, ok := strings.CutPrefix(l, "conflict: "); ok {
				line.Conflicts = append(line.Conflicts, path)
			}
		}
		out = append(out, line)
		id = pando.ObjectID{}
		if len(c.parents) > 0 && !w.edge(line.Commit) {
			id = c.parents[0]
		}
	}
	return out, nil
}

// Read returns the value of a path at a commit.
func (r *Repo) Read(at pando.ObjectID, p string) (pando.StateValue, error) {
	w := r.work()
	root, err := w.rootOf(at)
	if err != nil {
		return pando.StateValue{}, err
	}
	return r.read(w, root, p)
}

func (r *Repo) read(w *work, root pando.ObjectID, p string) (pando.StateValue, error) {
	v := pando.StateValue{Type: r.types.typeOf(p)}
	e, err := w.lookup(root, p)
	switch {
	case err != nil:
		return v, err
	case e.id.IsZero(), e.tree && v.Type != pando.StateLog:
		return v, fmt.Errorf("state path %q: %w", p, pando.ErrNotFound)
	case e.tree:
		v.Bytes, err = w.since(e.id, position{})
	default:
		v.Bytes, err = w.blob(e.id)
	}
	v.Bytes = bytes.Clone(v.Bytes)
	return v, err
}

// lookup returns the entry at a path, or a zero entry.
func (w *work) lookup(root pando.ObjectID, p string) (entry, error) {
	e := entry{tree: true, id: root}
	for part := range strings.SplitSeq(p, "/") {
		if !e.tree {
			return entry{}, nil
		}
		var err error
		if e, err = w.child(e.id, part); err != nil {
			return entry{}, err
		}
	}
	return e, nil
}
