package state

import (
	"context"
	"fmt"
	"maps"
	"time"

	"pando.run/pando"
)

// place is where a branch is.
type place struct {
	head  pando.ObjectID
	base  pando.ObjectID // the newest commit of main that head contains
	since pando.ObjectID // the commit of main at which the branch began anew: no merge ever looks behind it
}

// anew is the place of a branch that is one with main.
func anew(main pando.ObjectID) place { return place{main, main, main} }

// latest is a commit's time: that of the clock, but never before a commit that it grew from, so that a walk through history
// may stop by time whatever the clocks of its writers did.
func latest(now time.Time, parents ...time.Time) time.Time {
	for _, p := range parents {
		if p.After(now) {
			now = p
		}
	}
	return now
}

// move writes what was made and moves the branch, durably, with what is owed from before.
func (b *Branch) move(ctx context.Context, w *work, to place) error {
	i := string(b.instance)
	branch := b.repo.ref(branchRef, i)
	refs := map[string]pando.ObjectID{branch: to.head, b.repo.ref(baseRef, i): to.base, b.repo.ref(sinceRef, i): to.since}
	maps.Copy(refs, b.owedNow(w))
	err := b.repo.objects.Update(ctx, pando.ObjectsUpdate{Objects: w.saved, Refs: refs, If: map[string]pando.ObjectID{branch: b.stored}})
	if err != nil {
		return fmt.Errorf("move the branch of %s: %w", b.instance, err)
	}
	b.place, b.stored, b.owed = to, to.head, nil
	return nil
}

// owedNow is what the next write of the branch has to carry. Where main is noted goes forward only: another branch may
// have noted a later one meanwhile.
func (b *Branch) owedNow(w *work) map[string]pando.ObjectID {
	main := b.repo.ref(mainRef, mainName)
	seen, err := b.repo.lookup(main)
	if later, known := w.isIn(b.owed[main], seen); err == nil && known == nil && later {
		delete(b.owed, main)
	}
	return b.owed
}

// join merges the branch's head and main.
func (b *Branch) join(w *work, base, main pando.ObjectID, now time.Time, parents []pando.ObjectID) (pando.ObjectID, pando.MergeResult, error) {
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
	c := commit{tree: root, parents: parents, author: b.instance, at: latest(now, ours.at, theirs.at), message: m.describe()}
	m.result.Commit = w.put(pando.CommitObject, c.encode(b.repo.service))
	return m.result.Commit, m.result, nil
}

// Merge merges what is committed into main and returns main's next commit, its objects durable. The caller moves main by
// compare-and-swap and then calls Pushed; if the swap is lost, it merges again onto the newer main. A branch that main
// contains already is left out: the answer is main itself, also when there is none. Of the branches of one host, one at a time may be between Merge
// and Pushed.
func (b *Branch) Merge(ctx context.Context, main pando.ObjectID, now time.Time) (pando.ObjectID, pando.MergeResult, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.repo.work()
	b.offered = b.head
	if main.IsZero() && b.head == b.base {
		return main, pando.MergeResult{Commit: b.head}, nil // a service that keeps no state gets no main
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
		return main, pando.MergeResult{Commit: main}, nil // nothing of its own: what main is need not even be on this host
	}
	switch old, err := w.isIn(main, b.base); {
	case err != nil:
		return main, pando.MergeResult{}, err
	case old && main != b.base:
		return main, pando.MergeResult{}, fmt.Errorf("merge the state of %s: %w: main was at %s before", b.instance, pando.ErrConflict, b.base)
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
	if err := b.repo.objects.Update(ctx, pando.ObjectsUpdate{Objects: w.saved, Refs: offer}); err != nil {
		return main, result, fmt.Errorf("merge the state of %s: %w", b.instance, err)
	}
	b.unsure = true
	return id, result, nil
}

func (b *Branch) offer(id pando.ObjectID) string {
	return b.repo.ref(offerRef, string(b.instance)+"/"+id.String())
}

// offers are the refs that withdraw what the branch has offered to main. Its answer is known by now.
func (b *Branch) offers() (map[string]pando.ObjectID, error) {
	refs, err := b.repo.objects.Refs(b.repo.ref(offerRef, string(b.instance)+"/"))
	for name := range refs {
		refs[name] = pando.ObjectID{}
	}
	return refs, err
}

// Pushed says that main is now at a commit that contains what Merge was given: the branch begins anew from it. A branch
// that has been committed to since goes on from its own head; its next merge finds what main has of it.
//
// The note of that is no write of its own: the branch's next one carries it, or Settle. Until then the store has the branch
// as main contains it, protected by the same refs, and Born finds out.
func (b *Branch) Pushed(main pando.ObjectID) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if main.IsZero() || b.place == anew(main) && !b.unsure { // zero: there is no main to begin anew from
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

// owe keeps for the next write that main is at a commit, and that what was offered to it has its answer.
func (b *Branch) owe(main pando.ObjectID) error {
	refs, err := b.offers()
	if err != nil {
		return fmt.Errorf("withdraw the offers of %s: %w", b.instance, err)
	}
	refs[b.repo.ref(mainRef, mainName)] = main
	if b.owed == nil {
		b.owed = map[string]pando.ObjectID{}
	}
	maps.Copy(b.owed, refs)
	return nil
}

// Settle writes what Pushed left to be noted, so that a branch that is not written to holds no old history.
func (b *Branch) Settle(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.owed == nil {
		return nil
	}
	return b.move(ctx, b.repo.work(), b.place)
}

// Pull takes what others pushed into the branch.
func (b *Branch) Pull(ctx context.Context, main pando.ObjectID, now time.Time) (pando.MergeResult, error) {
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

// Discard drops the branch; its merged commits stay in main.
func (b *Branch) Discard(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	err := b.discard(ctx)
	if err == nil && b.journal != nil {
		err = b.journal.Remove()
	}
	if err != nil {
		return fmt.Errorf("drop the branch of %s: %w", b.instance, err)
	}
	return nil
}

func (b *Branch) discard(ctx context.Context) error {
	refs, err := b.offers()
	if err != nil {
		return err
	}
	maps.Copy(refs, b.owedNow(b.repo.work()))
	for _, kind := range []string{branchRef, baseRef, sinceRef} {
		refs[b.repo.ref(kind, string(b.instance))] = pando.ObjectID{}
	}
	return b.repo.objects.Update(ctx, pando.ObjectsUpdate{Refs: refs})
}
