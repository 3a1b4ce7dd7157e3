package state

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"pando.run/pando"
)

// Keep says how much history a service keeps: every commit of main that is among the newest Commits or younger than Age, of
// those the newest Most, and what its live branches need to merge.
type Keep struct {
	Commits int
	Age     time.Duration
	Most    int // whatever their age; 0: all of that age
}

// DefaultKeep is enough to look back and to fetch from time to time. Its age also bounds how long a reader of a state
// (a clone, a pull) may work on what it began with. A service that commits more than Most in that time would fill the disk: its
// readers have less time.
var DefaultKeep = Keep{Commits: 1000, Age: 10 * time.Minute, Most: 10_000}

// Known is what the registry says of the states of a host. It may lag behind: the refs of this host protect what is newer.
type Known struct {
	Heads map[pando.ServiceKey]pando.ObjectID // of main, of every service that has one
	Alive func(pando.InstanceID) bool         // whether an instance has a record at the moment of the call
}

// Trimmed is what a trim did.
type Trimmed struct {
	Edges    int // commits at which a history begins now
	Branches int // of instances that are gone and merged
	Objects  int // deleted
}

// Trim cuts old history off every state of this host and deletes what nothing reaches any more.
//
// History is cut as in a shallow clone of git's: old commits become edges, their parents go. No commit gets another name by
// that, so main's head, the branches and every clone stay what they are. The edges are durable before the first object
// goes, and an object goes only if no ref reached it after the deletion had begun to note what is written; so a trim may be
// killed anywhere and may run beside every other operation.
func Trim(ctx context.Context, o pando.Objects, known Known, keep Keep, now time.Time) (done Trimmed, err error) {
	services, err := Services(o)
	if err != nil {
		return done, fmt.Errorf("trim states: %w", err)
	}
	for _, s := range services {
		t := trim{objects: o, service: s, main: known.Heads[s], before: now.Add(-keep.Age)}
		if err := t.run(ctx, known, keep, &done); err != nil {
			return done, fmt.Errorf("trim the state of %s: %w", s, err)
		}
	}
	done.Objects, err = o.Prune(ctx, func() (func(pando.ObjectID) bool, error) { return live(ctx, o, known.Heads) })
	return done, err
}

// Services are the services that have a ref on this host.
func Services(o pando.Objects) ([]pando.ServiceKey, error) {
	refs, err := o.Refs("")
	if err != nil {
		return nil, err
	}
	found := map[pando.ServiceKey]bool{}
	for name := range refs {
		if parts := strings.SplitN(name, "/", 3); len(parts) == 3 {
			found[pando.ServiceKey{Tenant: pando.Tenant(parts[0]), Name: pando.ServiceName(parts[1])}] = true
		}
	}
	return slices.SortedFunc(maps.Keys(found), pando.ServiceKey.Compare), nil
}

// trim is that of one service.
type trim struct {
	objects pando.Objects
	service pando.ServiceKey
	main    pando.ObjectID // as the registry knows it
	before  time.Time      // a commit that is older becomes an edge
	refs    map[string]pando.ObjectID
}

func (t *trim) run(ctx context.Context, known Known, keep Keep, done *Trimmed) error {
	if err := t.bury(ctx, known.Alive, done); err != nil {
		return err
	}
	var err error
	if t.refs, err = t.objects.Refs(refsOf(t.service)); err != nil {
		return err
	}
	if _, has := known.Heads[t.service]; !has && !t.branches() {
		return t.forget(ctx)
	}
	if err := t.limit(keep); err != nil {
		return err
	}
	edges, err := t.edges()
	if err != nil {
		return err
	}
	done.Edges += len(edges)
	u := pando.ObjectsUpdate{Refs: map[string]pando.ObjectID{}}
	for name := range t.refs {
		if strings.HasPrefix(name, refOf(t.service, edgeRef, "")) {
			u.Refs[name] = pando.ObjectID{}
		}
	}
	for _, id := range edges {
		u.Refs[refOf(t.service, edgeRef, id.String())] = id
	}
	for name, id := range u.Refs {
		if t.refs[name] == id {
			delete(u.Refs, name)
		}
	}
	return t.objects.Update(ctx, u)
}

// bury drops the branches of instances that have no record any more, if main contains them: their agent died between the
// two.
func (t *trim) bury(ctx context.Context, alive func(pando.InstanceID) bool, done *Trimmed) error {
	branches, err := Branches(t.objects, t.service)
	if err != nil {
		return err
	}
	r := Open(t.objects, t.service, nil)
	for i, head := range branches {
		if alive == nil || alive(i) {
			continue
		}
		merged, err := r.work().isIn(head, t.main)
		if errors.Is(err, pando.ErrNotFound) {
			continue // main is on another host, or newer than what this one knows
		}
		if err != nil {
			return err
		}
		if merged {
			if err := (&Branch{repo: r, instance: i}).discard(ctx); err != nil {
				return err
			}
			done.Branches++
		}
	}
	return nil
}

func (t *trim) branches() bool {
	for name := range t.refs {
		if strings.HasPrefix(name, refOf(t.service, branchRef, "")) {
			return true
		}
	}
	return false
}

// forget drops all refs of a service that the registry does not know any more and that no instance writes.
func (t *trim) forget(ctx context.Context) error {
	u := pando.ObjectsUpdate{Refs: map[string]pando.ObjectID{}}
	for name := range t.refs {
		u.Refs[name] = pando.ObjectID{}
	}
	return t.objects.Update(ctx, u)
}

// limit moves the time before which history goes back to what has to stay: the newest commits of main, and where each
// branch began anew, behind which no merge looks.
func (t *trim) limit(keep Keep) error {
	w := newWork(t.objects, t.service)
	if err := t.atMost(w, keep.Most); err != nil {
		return err
	}
	for name, id := range t.refs {
		if !strings.HasPrefix(name, refOf(t.service, sinceRef, "")) {
			continue
		}
		c, err := w.commit(id)
		if errors.Is(err, pando.ErrNotFound) {
			continue // a branch that began at a main of another host, and has nothing of its own yet
		}
		if err != nil {
			return err
		}
		t.older(c.at)
	}
	heads, err := t.heads()
	if err != nil {
		return err
	}
	for _, id := range heads {
		at, _, err := back(w, id, max(keep.Commits, 1))
		if err != nil {
			return err
		}
		t.older(at)
	}
	return nil
}

// atMost moves the time before which history goes forward to the commit that is the last of so many. It is the older one where
// this host and the registry know main differently.
func (t *trim) atMost(w *work, most int) error {
	heads, err := t.heads()
	if err != nil || most == 0 || len(heads) == 0 {
		return err
	}
	var last time.Time
	for n, id := range heads {
		at, many, err := back(w, id, most)
		if err != nil || !many {
			return err
		}
		if n == 0 || at.Before(last) {
			last = at
		}
	}
	if last.After(t.before) {
		t.before = last
	}
	return nil
}

// back is the time of the oldest of the newest n commits of a main; many: there are so many.
func back(w *work, id pando.ObjectID, n int) (at time.Time, many bool, err error) {
	for ; ; n-- {
		c, err := w.commit(id)
		if err != nil {
			return at, false, err
		}
		if at.IsZero() || c.at.Before(at) {
			at = c.at
		}
		if n == 1 {
			return at, true, nil
		}
		if len(c.parents) == 0 || w.edge(id) {
			return at, false, nil
		}
		id = c.parents[0]
	}
}

func (t *trim) older(at time.Time) {
	if at.Before(t.before) {
		t.before = at
	}
}

// heads are main as this host saw it and as the registry knows it.
func (t *trim) heads() ([]pando.ObjectID, error) {
	return here(t.objects, t.main, t.refs[refOf(t.service, mainRef, mainName)])
}

// here are those of some commits that this host has: main may be on another one.
func here(o pando.Objects, ids ...pando.ObjectID) ([]pando.ObjectID, error) {
	var out []pando.ObjectID
	for _, id := range ids {
		switch _, _, err := o.Object(id); {
		case err == nil:
			out = append(out, id)
		case !errors.Is(err, pando.ErrNotFound):
			return nil, err
		}
	}
	return out, nil
}

// edges are the first commits of every line of history that are too old to be looked behind.
func (t *trim) edges() ([]pando.ObjectID, error) {
	w := newWork(t.objects, t.service)
	roots := []pando.ObjectID{t.main}
	for name, id := range t.refs {
		if !strings.HasPrefix(name, refOf(t.service, edgeRef, "")) {
			roots = append(roots, id)
		}
	}
	queue, err := here(t.objects, roots...)
	if err != nil {
		return nil, err
	}
	var edges []pando.ObjectID
	seen := map[pando.ObjectID]bool{}
	for ; len(queue) > 0; queue = queue[1:] {
		id := queue[0]
		if seen[id] {
			continue
		}
		seen[id] = true
		c, err := w.commit(id)
		if err != nil {
			return nil, err
		}
		switch {
		case len(c.parents) == 0:
		case c.at.Before(t.before), w.edge(id):
			edges = append(edges, id)
		default:
			queue = append(queue, c.parents...)
		}
	}
	return edges, nil
}

// live finds everything that the refs of this host and the mains of the registry reach.
func live(ctx context.Context, o pando.Objects, heads map[pando.ServiceKey]pando.ObjectID) (func(pando.ObjectID) bool, error) {
	refs, err := o.Refs("")
	if err != nil {
		return nil, err
	}
	walk := Walk{Objects: o, Edge: map[pando.ObjectID]bool{}}
	var from []pando.ObjectID
	for name, id := range refs {
		if parts := strings.SplitN(name, "/", 4); len(parts) == 4 && parts[2] == edgeRef {
			walk.Edge[id] = true
		} else {
			from = append(from, id)
		}
	}
	if from, err = here(o, slices.AppendSeq(from, maps.Values(heads))...); err != nil {
		return nil, err
	}
	err = walk.From(from, func(pando.ObjectKind, pando.ObjectID) error { return ctx.Err() })
	return walk.Saw, err
}
