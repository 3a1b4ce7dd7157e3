package state

import (
	"context"
	"fmt"
	"maps"
	"time"

	"pando.run/pando"
)

// place is the position of a branch.
type place struct {
	head pando.ObjectID
	base pando.ObjectID // the newest commit of main that head contains
	// since is the commit of main where the branch last restarted: no merge looks behind it.
	since pando.ObjectID
}

// anew returns the place of a branch that equals main.
func anew(main pando.ObjectID) place { return place{main, main, main} }

// latest returns the time of a new commit: the clock's, but never before its parents'. A walk
// through history may therefore stop by time, even if the clocks of its writers differ.
func latest(now time.Time, parents ...time.Time) time.Time {
	for _, p := range parents {
		if p.After(now) {
			now = p
		}
	}
	return now
}

// move writes the new objects and moves the branch, durably, together with the owed refs.
func (b *Branch) move(ctx context.Context, w *work, to place) error {
	i := string(b.instance)
	branch := b.repo.ref(branchRef, i)
	if err := b.retract(branch); err != nil {
		return fmt.Errorf("move the branch of %s: %w", b.instance, err)
	}
	refs := map[string]pando.ObjectID{
		branch: to.head, b.repo.ref(baseRef, i): to.base, b.repo.ref(sinceRef, i): to.since,
	}
	maps.Copy(refs, b.owedNow(w))
	if !b.mark.IsZero() {
		refs[b.repo.ref(markRef, i)] = b.mark
	}
	err := b.repo.objects.Update(ctx, pando.ObjectsUpdate{
		Objects: w.saved, Refs: refs, If: map[string]pando.ObjectID{branch: b.stored},
	})
	if err != nil {
		b.failed = to.head
		return fmt.Errorf("move the branch of %s: %w", b.instance, err)
	}
	b.place, b.stored, b.owed = to, to.head, nil
	return nil
}

// retract prepares the next write after a failed one. A disk may report an error for a write that
// happened. The next write then replaces it, because its caller received the error.
func (b *Branch) retract(branch string) error {
	if b.failed.IsZero() {
		return nil
	}
	at, err := b.repo.lookup(branch)
	if err != nil {
		return err
	}
	if at == b.failed {
		b.stored = at
	}
	b.failed = pando.ObjectID{}
	return nil
}

// owedNow returns the refs that the branch's next write carries. The note of main only moves
// forward: another branch may have noted a later one meanwhile.
func (b *Branch) owedNow(w *work) map[string]pando.ObjectID {
	main := b.repo.ref(mainRef, mainName)
	seen, err := b.repo.lookup(main)
	if later, known := w.isIn(b.owed[main], seen); err == nil && known == nil && later {
		delete(b.owed, main)
	}
	return b.owed
}

// join merges the branch's head and main.
func (b *Branch) join(
	w *work, base, main pando.ObjectID, now time.Time, parents []pando.ObjectID,
) (pando.ObjectID, pando.MergeResult, error) {
	m := &merge{work: w, types: b.repo.types, branch: b.instance}
	ours, err := w.commit(main)
	if err != nil {
		return main, m.result, err
	}
	theirs, err := w.commit(b.head)
	if err != nil {
		return main, m.result, err
	}
	m.later = !theirs.at.Before(ours.at)
	root, err := m.folders("", base, ours.tree, theirs.tree)
	if err != nil {
		return main, m.result, fmt.Errorf("merge the state of %s: %w", b.instance, err)
	}
	c := commit{tree: root, parents: parents, author: b.instance, at: latest(now, ours.at, theirs.at),
		message: m.describe()}
	m.result.Commit = w.put(pando.CommitObject, c.encode(b.repo.service))
	return m.result.Commit, m.result, nil
}

// Merge merges the committed changes into main and returns main's next commit with its objects
// durable. The caller moves main by compare-and-swap and then calls Pushed. If the swap is lost, it
// merges again onto the newer main.
//
// If main already contains the branch, Merge returns main itself, even a zero one. On one host,
// only one branch at a time may be between Merge and Pushed.
func (b *Branch) Merge(
	ctx context.Context, main pando.ObjectID, now time.Time,
) (pando.ObjectID, pando.MergeResult, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.repo.work()
	b.offered = b.head
	if main.IsZero() && b.head == b.base {
		return main, pando.MergeResult{Commit: b.head}, nil // a service without state gets no main
	}
	if main.IsZero() {
		b.unsure = true
		root, err := w.rootOf(b.head)
		if err != nil {
			return main, pando.MergeResult{}, err
		}
		first, err := w.entries(root)
		return b.head, pando.MergeResult{Commit: b.head, Taken: len(first)}, err
	}
	if b.head == b.base {
		// The branch has no commits of its own; main need not be on this host.
		return main, pando.MergeResult{Commit: main}, nil
	}
	switch old, err := w.isIn(main, b.base); {
	case err != nil:
		return main, pando.MergeResult{}, err
	case old && main != b.base:
		return main, pando.MergeResult{}, fmt.Errorf("merge the state of %s: %w: main was at %s before",
			b.instance, pando.ErrConflict, b.base)
	}
	base, contained, err := b.common(w, main)
	if err != nil || contained {
		return main, pando.MergeResult{Commit: main}, err
	}
	id, result, err := b.join(w, base, main, now, []pando.ObjectID{main, b.head})
	if err != nil {
		return main, result, err
	}
	offer := map[string]pando.ObjectID{b.offer(id): id}
	if err := b.repo.objects.Update(ctx,
		pando.ObjectsUpdate{Objects: w.saved, Refs: offer}); err != nil {
		return main, result, fmt.Errorf("merge the state of %s: %w", b.instance, err)
	}
	b.unsure = true
	return id, result, nil
}

func (b *Branch) offer(id pando.ObjectID) string {
	return b.repo.ref(offerRef, string(b.instance)+"/"+id.String())
}

// offers returns the refs that withdraw the branch's offers to main. Their answers are known by
// now.
func (b *Branch) offers() (map[string]pando.ObjectID, error) {
	refs, err := b.repo.objects.Refs(b.repo.ref(offerRef, string(b.instance)+"/"))
	for name := range refs {
		refs[name] = pando.ObjectID{}
	}
	return refs, err
}

// Pushed records that main is now at a commit that contains the offered head. The branch restarts
// from it. A branch with newer commits continues from its own head; its next merge finds its part
// in main.
//
// Pushed does not write. The branch's next write, or Settle, carries the note. Until then the same
// refs protect the branch in the store, and Born repairs it.
func (b *Branch) Pushed(main pando.ObjectID) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if main.IsZero() || b.place == anew(main) && !b.unsure { // zero: no main to restart from
		return nil
	}
	if err := b.owe(main); err != nil {
		return err
	}
	if b.unsure = b.head != b.offered; !b.unsure {
		b.place = anew(main)
	}
	return nil
}

// owe adds two notes to the next write: main's commit, and the end of the offers to it.
func (b *Branch) owe(main pando.ObjectID) error {
	refs, err := b.offers()
	if err != nil {
		return fmt.Errorf("withdraw the offers of %s: %w", b.instance, err)
	}
	refs[b.repo.ref(mainRef, mainName)] = main
	for name, id := range refs {
		b.oweRef(name, id)
	}
	return nil
}

// oweRef adds a ref to the branch's next write.
func (b *Branch) oweRef(name string, id pando.ObjectID) {
	if b.owed == nil {
		b.owed = map[string]pando.ObjectID{}
	}
	b.owed[name] = id
}

// Settle writes the notes that Pushed left, so that a branch without new writes holds no old
// history.
func (b *Branch) Settle(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.owed == nil {
		return nil
	}
	return b.move(ctx, b.repo.work(), b.place)
}

// Pull merges the pushes of others into the branch.
func (b *Branch) Pull(
	ctx context.Context, main pando.ObjectID, now time.Time,
) (pando.MergeResult, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.repo.work()
	if old, err := w.isIn(main, b.base); err != nil || old || main.IsZero() {
		return pando.MergeResult{Commit: b.head}, err
	}
	base, contained, err := b.common(w, main)
	if err != nil {
		return pando.MergeResult{}, err
	}
	if contained {
		return pando.MergeResult{Commit: main}, b.move(ctx, w, anew(main))
	}
	id, result, err := b.join(w, base, main, now, []pando.ObjectID{b.head, main})
	if err != nil {
		return result, err
	}
	return result, b.move(ctx, w, place{head: id, base: main, since: b.since})
}

// Discard drops the branch. Its merged commits stay in main.
func (b *Branch) Discard(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	err := b.discard(ctx, false)
	if err == nil && b.journal != nil {
		err = b.journal.Remove()
	}
	if err != nil {
		return fmt.Errorf("drop the branch of %s: %w", b.instance, err)
	}
	return nil
}

// Note drops the branch of an instance that another host may still run. Main contains it, and a
// note for that host has its head.
func (b *Branch) Note(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.discard(ctx, true); err != nil {
		return fmt.Errorf("drop the branch of %s: %w", b.instance, err)
	}
	return nil
}

func (b *Branch) discard(ctx context.Context, note bool) error {
	refs, err := b.offers()
	if err != nil {
		return err
	}
	merged := b.repo.ref(mergedRef, string(b.instance))
	if refs[merged] = (pando.ObjectID{}); note {
		if refs[merged], err = b.repo.lookup(b.repo.ref(branchRef, string(b.instance))); err != nil {
			return err
		}
	}
	maps.Copy(refs, b.owedNow(b.repo.work()))
	for _, kind := range []string{branchRef, baseRef, sinceRef, markRef} {
		refs[b.repo.ref(kind, string(b.instance))] = pando.ObjectID{}
	}
	u := pando.ObjectsUpdate{Refs: refs}
	if !b.stored.IsZero() && b.failed.IsZero() { // another host may have sent more of the branch
		u.If = map[string]pando.ObjectID{b.repo.ref(branchRef, string(b.instance)): b.stored}
	}
	return b.repo.objects.Update(ctx, u)
}
