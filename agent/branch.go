package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"pando.run/pando"
	"pando.run/pando/state"
)

// head is the main head of a service's state as this host knows it.
func (a *Agent) head(s pando.ServiceKey) pando.ObjectID {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.world.Heads[s].V.Commit
}

func (a *Agent) branch(i pando.InstanceID) (*runner, *state.Branch, error) {
	r, err := a.runner(i)
	if err != nil {
		return nil, nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if r.branch == nil {
		return nil, nil, fmt.Errorf("instance %s: %w", i, errNoState)
	}
	return r, r.branch, nil
}

// StateGet implements pando.Self.
func (a *Agent) StateGet(_ context.Context, i pando.InstanceID, path string) (pando.StateValue, error) {
	_, b, err := a.branch(i)
	if err != nil {
		return pando.StateValue{}, err
	}
	return b.Get(path)
}

// StateList implements pando.Self.
func (a *Agent) StateList(_ context.Context, i pando.InstanceID, prefix string) ([]pando.StateEntry, error) {
	_, b, err := a.branch(i)
	if err != nil {
		return nil, err
	}
	return b.List(prefix)
}

// StatePut implements pando.Self.
func (a *Agent) StatePut(_ context.Context, i pando.InstanceID, path string, value []byte) error {
	_, b, err := a.branch(i)
	if err != nil {
		return err
	}
	return b.Put(path, value)
}

// StatePatch implements pando.Self.
func (a *Agent) StatePatch(_ context.Context, i pando.InstanceID, path string, delta []byte) error {
	_, b, err := a.branch(i)
	if err != nil {
		return err
	}
	return b.Patch(path, delta)
}

// StateDelete implements pando.Self.
func (a *Agent) StateDelete(_ context.Context, i pando.InstanceID, path string) error {
	_, b, err := a.branch(i)
	if err != nil {
		return err
	}
	return b.Delete(path)
}

// StateCommit implements pando.Self.
func (a *Agent) StateCommit(ctx context.Context, i pando.InstanceID, message string) (pando.ObjectID, error) {
	_, b, err := a.branch(i)
	if err != nil {
		return pando.ObjectID{}, err
	}
	return b.Commit(ctx, message, a.Clock.Now())
}

// StatePull implements pando.Self.
func (a *Agent) StatePull(ctx context.Context, i pando.InstanceID) (pando.MergeResult, error) {
	r, b, err := a.branch(i)
	if err != nil {
		return pando.MergeResult{}, err
	}
	return b.Pull(ctx, a.head(r.service), a.Clock.Now())
}

// StatePush implements pando.Self.
func (a *Agent) StatePush(ctx context.Context, i pando.InstanceID) (pando.MergeResult, error) {
	r, b, err := a.branch(i)
	if err != nil {
		return pando.MergeResult{}, err
	}
	if _, err := b.Commit(ctx, "pushed by "+string(i), a.Clock.Now()); err != nil {
		return pando.MergeResult{}, err
	}
	return a.push(ctx, r)
}

// push merges an instance's branch into main exactly once: the objects are durable first, then main moves by
// compare-and-swap in the registry, then the branch begins anew from main. A crash before the swap leaves main as it was;
// a crash after it leaves a branch that main already contains, and merging that again changes nothing.
func (a *Agent) push(ctx context.Context, r *runner) (pando.MergeResult, error) {
	repo := a.repo(r.service)
	if err := repo.push.take(ctx); err != nil {
		return pando.MergeResult{}, err
	}
	defer repo.push.give()
	for {
		a.mu.Lock()
		head, news := a.world.Heads[r.service], a.changed
		a.mu.Unlock()
		now := a.Clock.Now()
		to, result, err := r.branch.Merge(ctx, head.V.Commit, now)
		if err != nil {
			return result, err
		}
		if to != head.V.Commit {
			next := pando.StateHead{Service: r.service, Commit: to, Host: a.Host.Name, At: now, Merges: head.V.Merges + 1}
			_, err = a.commit(ctx, pando.Txn{If: []pando.Condition{{Key: next.Key(), Modified: head.Modified}}, Put: []pando.Stored{next}})
		}
		if errors.Is(err, pando.ErrConflict) {
			if err := a.otherPush(ctx, news); err != nil {
				return result, err
			}
			continue
		}
		if err != nil {
			return result, fmt.Errorf("merge the state of %s into main: %w", r.id, err)
		}
		for _, path := range result.Conflicts {
			r.decide(ctx, pando.DecidedConflict, "both versions of "+path+" were kept", nil)
		}
		return result, r.branch.Pushed(ctx, to)
	}
}

// otherPush waits for the news of a push that was faster.
func (a *Agent) otherPush(ctx context.Context, news <-chan struct{}) error {
	timer, stop := a.Clock.After(50 * time.Millisecond)
	defer stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-news:
	case <-timer:
	}
	return nil
}

// StateLog implements peer.Agent.
func (a *Agent) StateLog(_ context.Context, s pando.ServiceKey, most int) ([]pando.StateCommit, error) {
	return a.repo(s).Log(a.head(s), most)
}

// State implements peer.Agent.
func (a *Agent) State() http.Handler {
	if a.Git == nil {
		return http.NotFoundHandler()
	}
	return a.Git(func(s pando.ServiceKey) (pando.Objects, pando.ObjectID, error) {
		head := a.head(s)
		if head.IsZero() {
			return nil, head, fmt.Errorf("state of %s: %w", s, pando.ErrNotFound)
		}
		return a.Objects, head, nil
	})
}

// Logs implements peer.Agent.
func (a *Agent) Logs(ctx context.Context, i pando.InstanceID, lines int, follow bool) (io.ReadCloser, error) {
	a.mu.Lock()
	s := a.world.Instances[i].V.Service
	a.mu.Unlock()
	return a.OpenLog(ctx, s, i, lines, follow)
}
