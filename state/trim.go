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

// Keep bounds a service's history. It keeps commits of main that are among the newest Commits or
// younger than Age, at most Most of them. It also keeps the commits that live branches need to
// merge.
type Keep struct {
	Commits int
	Age     time.Duration
	Most    int // at any age; 0: no limit
}

// DefaultKeep is enough to look back and to fetch now and then. Its age also bounds the time of a
// reader (a clone, a pull) for its first commit. It is longer than the lease of a host: a copy that
// was away sees in main's history the branches that were merged meanwhile. A service with more than
// Most commits in that time would fill the disk, so its readers have less time.
var DefaultKeep = Keep{Commits: 1000, Age: 10 * time.Minute, Most: 10_000}

// Known is the registry's view of the states of a host. It may lag behind: the refs of this host
// protect newer commits.
type Known struct {
	Heads map[pando.ServiceKey]pando.ObjectID // main of every service that has one
	// Alive reports whether an instance has a record at the moment of the call.
	Alive func(pando.InstanceID) bool
	// Elsewhere reports whether an instance runs on another host that copies its branch to this one.
	// nil: no host does.
	Elsewhere func(pando.ServiceKey, pando.InstanceID) bool
	// Seated reports whether an instance has a record. Its host may be away.
	Seated func(pando.ServiceKey, pando.InstanceID) bool
}

// Trimmed is the result of a trim.
type Trimmed struct {
	Edges    int // commits where a history now begins
	Branches int // of instances that are gone and merged
	Objects  int // deleted
}

// Trim cuts old history off every state of this host and deletes unreachable objects.
//
// History is cut as in a git shallow clone: old commits become edges, their parents go. No commit
// changes its name, so main's head, the branches and every clone stay the same.
//
// The edges are durable before the first object goes. An object goes only if no ref has reached it
// since the deletion began to note writes. A trim may therefore be killed at any point and may run
// beside every other operation.
func Trim(
	ctx context.Context, o pando.Objects, known Known, keep Keep, now time.Time,
) (done Trimmed, err error) {
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
	done.Objects, err = o.Prune(ctx,
		func() (func(pando.ObjectID) bool, error) { return live(ctx, o, known.Heads) })
	return done, err
}

// Services returns the services that have a ref on this host.
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

// trim is the trim of one service.
type trim struct {
	objects pando.Objects
	service pando.ServiceKey
	main    pando.ObjectID // as the registry has it
	before  time.Time      // an older commit becomes an edge
	refs    map[string]pando.ObjectID
}

func (t *trim) run(ctx context.Context, known Known, keep Keep, done *Trimmed) error {
	if err := t.bury(ctx, known, done); err != nil {
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

// Bury drops the branches of former instances that main contains, and returns their number. It is
// the part of Trim that a death calls for: a host with a copy sees a branch merged first, and its
// instance end later.
func Bury(ctx context.Context, o pando.Objects, known Known) (int, error) {
	services, err := Services(o)
	if err != nil {
		return 0, fmt.Errorf("drop the branches of former instances: %w", err)
	}
	var done Trimmed
	for _, s := range services {
		t := trim{objects: o, service: s, main: known.Heads[s]}
		if err := t.bury(ctx, known, &done); err != nil {
			return done.Branches, fmt.Errorf("drop the branches of former instances of %s: %w", s, err)
		}
	}
	return done.Branches, nil
}

// bury drops the branches of instances without a record, if main contains them. Their agent died
// between the two steps, or their host is another one.
func (t *trim) bury(ctx context.Context, known Known, done *Trimmed) error {
	branches, err := Branches(t.objects, t.service)
	if err == nil {
		err = t.forgetNotes(ctx, known)
	}
	if err != nil {
		return err
	}
	r := Open(t.objects, t.service, nil)
	for i, head := range branches {
		if known.Alive == nil || known.Alive(i) ||
			known.Elsewhere != nil && known.Elsewhere(t.service, i) {
			continue
		}
		base, err := r.lookup(r.ref(baseRef, string(i)))
		if err != nil {
			return err
		}
		merged := head == base
		if !merged {
			merged, err = r.work().isIn(head, t.main)
		}
		if errors.Is(err, pando.ErrNotFound) {
			continue // main is on another host, or is newer than this host's
		}
		if err != nil {
			return err
		}
		if merged {
			if err := (&Branch{repo: r, instance: i}).discard(ctx,
				known.Seated != nil && known.Seated(t.service, i)); err != nil {
				return err
			}
			done.Branches++
		}
	}
	return nil
}

// forgetNotes drops the notes about instances that have neither a record nor a branch here.
func (t *trim) forgetNotes(ctx context.Context, known Known) error {
	notes, err := t.objects.Refs(refOf(t.service, mergedRef, ""))
	if err != nil || len(notes) == 0 || known.Seated == nil {
		return err
	}
	for name := range notes {
		i := pando.InstanceID(name[strings.LastIndex(name, "/")+1:])
		_, err := t.objects.Ref(refOf(t.service, branchRef, string(i)))
		if err == nil || known.Seated(t.service, i) {
			delete(notes, name)
			continue
		}
		notes[name] = pando.ObjectID{}
	}
	return t.objects.Update(ctx, pando.ObjectsUpdate{Refs: notes})
}

func (t *trim) branches() bool {
	for name := range t.refs {
		if strings.HasPrefix(name, refOf(t.service, branchRef, "")) {
			return true
		}
	}
	return false
}

// forget drops all refs of a service that the registry has deleted and that no instance writes.
func (t *trim) forget(ctx context.Context) error {
	u := pando.ObjectsUpdate{Refs: map[string]pando.ObjectID{}}
	for name := range t.refs {
		u.Refs[name] = pando.ObjectID{}
	}
	return t.objects.Update(ctx, u)
}

// idle reports whether a branch has no commits of its own. It then holds one commit of main and
// none of the history after it: its next merge takes that commit as the base.
func (t *trim) idle(instance string) bool {
	head := t.refs[refOf(t.service, branchRef, instance)]
	return !head.IsZero() && head == t.refs[refOf(t.service, baseRef, instance)] &&
		head == t.refs[refOf(t.service, sinceRef, instance)]
}

// limit moves the cut back to the commits that must stay: the newest of main, and the start of each
// branch with commits. No merge looks behind that start.
func (t *trim) limit(keep Keep) error {
	w := newWork(t.objects, t.service)
	if err := t.atMost(w, keep.Most); err != nil {
		return err
	}
	for name, id := range t.refs {
		instance, isSince := strings.CutPrefix(name, refOf(t.service, sinceRef, ""))
		isMark := strings.HasPrefix(name, refOf(t.service, markRef, ""))
		if !isMark && (!isSince || t.idle(instance)) {
			continue
		}
		c, err := w.commit(id)
		if errors.Is(err, pando.ErrNotFound) {
			continue // it began at a main of another host and has no commits yet
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

// atMost moves the cut forward to the last of the newest `most` commits. If this host and the
// registry have different mains, it takes the older one.
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

// back returns the time of the oldest of the newest n commits of a main. many reports whether main
// has n commits.
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

// heads returns main as this host has it and as the registry has it.
func (t *trim) heads() ([]pando.ObjectID, error) {
	return here(t.objects, t.main, t.refs[refOf(t.service, mainRef, mainName)])
}

// here returns those commits that this host has: main may be on another host.
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

// edges returns the first commit of every line of history that is older than the cut.
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

// live returns a filter for every object that the refs of this host and the mains of the registry
// reach.
func live(
	ctx context.Context, o pando.Objects, heads map[pando.ServiceKey]pando.ObjectID,
) (func(pando.ObjectID) bool, error) {
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
