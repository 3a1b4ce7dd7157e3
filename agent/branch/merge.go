package branch

import (
	"context"
	"errors"
	"fmt"
	"time"

	"pando.run/pando"
	"pando.run/pando/agent/turn"
	"pando.run/pando/state"
	"pando.run/pando/test/failpoint"
)

// collisionWait is how long a merge waits for the change that it collided with.
const collisionWait = 50 * time.Millisecond

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

// Pull merges main into an instance's branch.
func (b *Branches) Pull(
	ctx context.Context, s pando.ServiceKey, i pando.InstanceID,
) (pando.MergeResult, error) {
	branch, err := b.Of(ctx, i)
	if err != nil {
		return pando.MergeResult{}, err
	}
	main := b.Records.Main(s).V
	result, err := branch.Pull(ctx, main.Commit, b.Clock.Now())
	return result, b.moved(main, err)
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
	main := b.Records.Main(s).V
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
	for {
		news, head := b.Records.News(), b.Records.Main(s)
		now := b.Clock.Now()
		to, result, err := branch.Merge(ctx, head.V.Commit, now)
		err = b.moved(head.V, err)
		if err == nil && to != head.V.Commit {
			failpoint.Hit("merge written")
			next := pando.StateHead{
				Service: s, Commit: to, Host: b.Host, At: now, Merges: head.V.Merges + 1,
			}
			_, err = b.Records.Commit(ctx, pando.Txn{
				If:  []pando.Condition{{Key: next.Key(), Modified: head.Modified}},
				Put: []pando.Stored{next},
			})
		}
		if errors.Is(err, pando.ErrConflict) {
			if err := b.awaitNews(ctx, news); err != nil {
				return result, err
			}
			continue
		}
		if err != nil {
			return result, err
		}
		failpoint.Hit("merge swapped")
		if err := branch.Pushed(to); err != nil {
			return result, err
		}
		failpoint.Hit("merge noted")
		return result, nil
	}
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

// awaitNews waits for the change that a write collided with, at most collisionWait.
func (b *Branches) awaitNews(ctx context.Context, news <-chan struct{}) error {
	timer, stop := b.Clock.After(collisionWait)
	defer stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-news:
	case <-timer:
	}
	return nil
}

// moved explains a missing object when main is on another host. The service moved there and pushed
// while this host was away. Objects do not follow. Only a service without a `state:` in its spec
// moves.
func (b *Branches) moved(main pando.StateHead, err error) error {
	if main.Host == b.Host || !errors.Is(err, pando.ErrNotFound) {
		return err
	}
	return fmt.Errorf("%w: its state is on %s, and commits of %s stay there, unmerged;"+
		" a spec that names a `state:` keeps a service at home", ErrMoved, main.Host, b.Host)
}

// Drop discards the branch of an instance without a record. It first merges the rest of the branch
// into main, because an agent can die at any step before.
func (b *Branches) Drop(ctx context.Context, s pando.ServiceKey, i pando.InstanceID) error {
	target, known := b.Records.Target(s)
	main := b.Records.Main(s)
	branch, err := b.repo(s, target).Born(ctx, i, main.V.Commit)
	if err != nil {
		return err
	}
	if pushed := main.Modified > 0; known || pushed { // a purged service has no main to merge into
		if _, err := b.merge(ctx, s, branch); err != nil {
			return err
		}
	}
	return branch.Discard(ctx)
}
