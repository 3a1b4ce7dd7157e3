package branch

import (
	"context"
	"errors"
	"fmt"

	"pando.run/pando"
	"pando.run/pando/agent/turn"
	"pando.run/pando/state"
	"pando.run/pando/test/failpoint"
)

// Push merges the committed part of an instance's branch into main.
func (b *Branches) Push(
	ctx context.Context, s pando.ServiceKey, i pando.InstanceID,
) (pando.MergeResult, error) {
	branch, err := b.Of(ctx, i)
	if err != nil {
		return pando.MergeResult{}, err
	}
	result, err := b.merge(ctx, s, branch)
	if err != nil {
		return result, fmt.Errorf("merge the state of %s into main: %w", i, err)
	}
	return result, nil
}

// Pull merges main into an instance's branch. It sees every push that was answered before the call,
// on any host.
func (b *Branches) Pull(
	ctx context.Context, s pando.ServiceKey, i pando.InstanceID,
) (pando.MergeResult, error) {
	branch, err := b.Of(ctx, i)
	if err != nil {
		return pando.MergeResult{}, err
	}
	main, err := b.newest(ctx, s)
	if err != nil {
		return pando.MergeResult{}, err
	}
	if err := b.Bring(ctx, s, main.Commit); err != nil {
		return pando.MergeResult{}, err
	}
	result, err := branch.Pull(ctx, main.Commit, b.config.Clock.Now())
	return result, b.moved(main, err)
}

// newest returns the head of main. A state on this host alone moves through this host, so its
// records are enough. The records of a state with copies may be older than a push on another host.
func (b *Branches) newest(ctx context.Context, s pando.ServiceKey) (pando.StateHead, error) {
	if !b.several(s) {
		return b.config.Records.Main(s).V, nil
	}
	main, err := b.config.Records.Newest(ctx, s)
	if err != nil {
		return main, fmt.Errorf("read the newest commit of %s: %w", s, err)
	}
	return main, nil
}

// Merged reports whether main contains the branch of an instance and the branch has no uncommitted
// writes.
func (b *Branches) Merged(
	ctx context.Context, s pando.ServiceKey, i pando.InstanceID,
) (bool, error) {
	branch, err := b.Of(ctx, i)
	if err != nil {
		return false, err
	}
	main := b.config.Records.Main(s).V
	if err := b.Bring(ctx, s, main.Commit); err != nil {
		return false, err
	}
	merged, err := branch.Merged(main.Commit)
	return merged, b.moved(main, err)
}

// merge merges a branch into main exactly once. First the objects become durable, then main moves
// by compare-and-swap in the registry, then the branch begins anew from main. A crash before the
// swap leaves main unchanged. A crash after the swap leaves a branch that main already contains,
// and merging it again changes nothing.
func (b *Branches) merge(
	ctx context.Context, s pando.ServiceKey, branch *state.Branch,
) (pando.MergeResult, error) {
	give, err := b.takeTurn(ctx, s)
	if err != nil {
		return pando.MergeResult{}, err
	}
	defer give()
	until := b.config.Clock.Now().Add(copyWaitMax)
	for {
		news := b.config.Records.News()
		to, result, err := b.offer(ctx, s, branch)
		late := errors.Is(err, pando.ErrNotReady) || errors.Is(err, pando.ErrUnavailable)
		if errors.Is(err, pando.ErrConflict) ||
			late && b.several(s) && b.config.Clock.Now().Before(until) {
			if err := b.awaitNews(ctx, news); err != nil {
				return result, err
			}
			continue
		}
		if err != nil {
			return result, err
		}
		failpoint.Hit("merge swapped")
		b.copies.setMain(s, to)
		if err := branch.Pushed(to); err != nil {
			return result, err
		}
		failpoint.Hit("merge noted")
		return result, nil
	}
}

// offer merges a branch and moves main to the result. With copies, every copy has the result before
// main moves, and main moves only if the copies are still the same.
func (b *Branches) offer(
	ctx context.Context, s pando.ServiceKey, branch *state.Branch,
) (pando.ObjectID, pando.MergeResult, error) {
	head, now := b.config.Records.Main(s), b.config.Clock.Now()
	if err := b.Bring(ctx, s, head.V.Commit); err != nil {
		return head.V.Commit, pando.MergeResult{}, err
	}
	if b.several(s) { // another host may have merged a part of the branch
		if _, err := b.copyOnce(ctx, s, branch.Instance()); err != nil {
			return head.V.Commit, pando.MergeResult{}, err
		}
	}
	to, result, err := branch.Merge(ctx, head.V.Commit, now)
	err = b.moved(head.V, err)
	if err != nil || to == head.V.Commit {
		return to, result, err
	}
	failpoint.Hit("merge written")
	next := pando.StateHead{
		Service: s, Commit: to, Host: b.config.Host, At: now, Merges: head.V.Merges + 1,
	}
	conds := []pando.Condition{{Key: next.Key(), Modified: head.Modified}}
	if b.several(s) {
		k, err := b.copyOnce(ctx, s, branch.Instance())
		if err != nil {
			return to, result, err
		}
		failpoint.Hit("merge copied")
		next.Host, conds = k.V.Host, append(conds, k.If())
	}
	_, err = b.config.Records.Commit(ctx, pando.Txn{If: conds, Put: []pando.Stored{next}})
	return to, result, err
}

// several reports whether the state of a service is on several hosts, or will be.
func (b *Branches) several(s pando.ServiceKey) bool {
	return b.config.Records.Keeper(s).Modified > 0 || b.config.Records.Copies(s) > 1
}

// takeTurn waits until no other merge into the main of a service runs.
func (b *Branches) takeTurn(ctx context.Context, s pando.ServiceKey) (give func(), err error) {
	b.mu.Lock()
	m := b.merges[s]
	if m == nil {
		m = &merging{turn: turn.New()}
		b.merges[s] = m
	}
	m.users++
	b.mu.Unlock()
	leave := func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if m.users--; m.users == 0 {
			delete(b.merges, s)
		}
	}
	if err := m.turn.Take(ctx); err != nil {
		leave()
		return nil, err
	}
	return func() { m.turn.Give(); leave() }, nil
}

// moved explains a missing object when main is on another host. The service moved there and pushed
// while this host was away. Objects do not follow. Only a service without a `state:` in its spec
// moves.
func (b *Branches) moved(main pando.StateHead, err error) error {
	if main.Host == b.config.Host || b.several(main.Service) || !errors.Is(err, pando.ErrNotFound) {
		return err
	}
	return fmt.Errorf("%w: its state is on %s, and commits of %s stay there, unmerged;"+
		" a spec that names a `state:` keeps a service at home", ErrMoved, main.Host, b.config.Host)
}

// Drop discards the branch of an instance without a record. It first merges the rest of the branch
// into main, because an agent can die at any step before.
func (b *Branches) Drop(ctx context.Context, s pando.ServiceKey, i pando.InstanceID) error {
	return b.drop(ctx, s, i, false)
}

// drop is Drop. With note it leaves a note for the host of the instance.
func (b *Branches) drop(
	ctx context.Context, s pando.ServiceKey, i pando.InstanceID, note bool,
) error {
	target, known := b.config.Records.Target(s)
	main := b.config.Records.Main(s)
	branch, err := b.createOnce(ctx, s, i, target)
	if err != nil {
		return err
	}
	if pushed := main.Modified > 0; known || pushed { // a purged service has no main to merge into
		if _, err := b.merge(ctx, s, branch); err != nil {
			return err
		}
	}
	if note {
		return branch.Note(ctx)
	}
	return branch.Discard(ctx)
}
