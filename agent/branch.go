package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"time"

	"pando.run/pando"
	"pando.run/pando/failpoint"
	"pando.run/pando/state"
)

// head returns the head of a service's main that this host has last seen.
func (a *Agent) head(s pando.ServiceKey) pando.ObjectID {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.world.Heads[s].V.Commit
}

// branch returns the branch of an instance. It waits while the branch of a new instance is being
// created.
func (a *Agent) branch(ctx context.Context, i pando.InstanceID) (*runner, *state.Branch, error) {
	r, err := a.runner(i)
	if err != nil {
		return nil, nil, err
	}
	b := r.awaitBranch(ctx)
	switch {
	case ctx.Err() != nil:
		return nil, nil, ctx.Err()
	case b == nil:
		return nil, nil, fmt.Errorf("instance %s: %w", i, errNoState)
	}
	return r, b, nil
}

// StateGet implements pando.Self.
func (a *Agent) StateGet(ctx context.Context, i pando.InstanceID, path string) (pando.StateValue, error) {
	_, b, err := a.branch(ctx, i)
	if err != nil {
		return pando.StateValue{}, err
	}
	return b.Get(path)
}

// StateList implements pando.Self.
func (a *Agent) StateList(ctx context.Context, i pando.InstanceID, prefix string) ([]pando.StateEntry, error) {
	_, b, err := a.branch(ctx, i)
	if err != nil {
		return nil, err
	}
	return b.List(prefix)
}

// StatePut implements pando.Self.
func (a *Agent) StatePut(ctx context.Context, i pando.InstanceID, path string, value []byte) error {
	_, b, err := a.branch(ctx, i)
	if err != nil {
		return err
	}
	return b.Put(path, value)
}

// StatePatch implements pando.Self.
func (a *Agent) StatePatch(ctx context.Context, i pando.InstanceID, path string, delta []byte) error {
	_, b, err := a.branch(ctx, i)
	if err != nil {
		return err
	}
	return b.Patch(path, delta)
}

// StateDelete implements pando.Self.
func (a *Agent) StateDelete(ctx context.Context, i pando.InstanceID, path string) error {
	_, b, err := a.branch(ctx, i)
	if err != nil {
		return err
	}
	return b.Delete(path)
}

// StateCommit implements pando.Self.
func (a *Agent) StateCommit(ctx context.Context, i pando.InstanceID, c pando.StateChange) (pando.ObjectID, error) {
	_, b, err := a.branch(ctx, i)
	if err != nil {
		return pando.ObjectID{}, err
	}
	return b.CommitChange(ctx, c, a.Clock.Now())
}

// StatePull implements pando.Self.
func (a *Agent) StatePull(ctx context.Context, i pando.InstanceID) (pando.MergeResult, error) {
	r, b, err := a.branch(ctx, i)
	if err != nil {
		return pando.MergeResult{}, err
	}
	a.mu.Lock()
	head := a.world.Heads[r.service].V
	a.mu.Unlock()
	result, err := b.Pull(ctx, head.Commit, a.Clock.Now())
	return result, a.moved(head, err)
}

// StatePush implements pando.Self.
func (a *Agent) StatePush(ctx context.Context, i pando.InstanceID) (pando.MergeResult, error) {
	r, b, err := a.branch(ctx, i)
	if err != nil {
		return pando.MergeResult{}, err
	}
	if _, err := b.Commit(ctx, "pushed by "+string(i), a.Clock.Now()); err != nil {
		return pando.MergeResult{}, err
	}
	return a.push(ctx, r)
}

// repo returns the state of a service on this host, typed by the spec of one revision. An instance
// merges by the spec of its own revision.
func (a *Agent) repo(s pando.ServiceKey, revision int) *state.Repo {
	a.mu.Lock()
	defer a.mu.Unlock()
	spec, _ := a.world.SpecOf(s, revision)
	return state.Open(a.Objects, s, spec.State).With(a.Journals)
}

// merging returns the turn that serialises merges into the main of a service.
func (a *Agent) merging(s pando.ServiceKey) turn {
	a.mu.Lock()
	defer a.mu.Unlock()
	t, ok := a.merges[s]
	if !ok {
		t = newTurn()
		a.merges[s] = t
	}
	return t
}

// push merges the instance's branch and records a decision for each conflict.
func (a *Agent) push(ctx context.Context, r *runner) (pando.MergeResult, error) {
	result, err := a.merge(ctx, r.service, r.awaitBranch(ctx))
	if err != nil {
		return result, fmt.Errorf("merge the state of %s into main: %w", r.id, err)
	}
	for _, path := range result.Conflicts {
		r.decide(ctx, pando.DecidedConflict, "both versions of "+path+" were kept", nil)
	}
	return result, nil
}

// merge merges a branch into main exactly once. First the objects become durable, then main moves
// by compare-and-swap in the registry, then the branch begins anew from main. A crash before the
// swap leaves main unchanged. A crash after the swap leaves a branch that main already contains,
// and merging it again changes nothing.
func (a *Agent) merge(ctx context.Context, s pando.ServiceKey, b *state.Branch) (pando.MergeResult, error) {
	turn := a.merging(s)
	if err := turn.take(ctx); err != nil {
		return pando.MergeResult{}, err
	}
	defer turn.give()
	for {
		a.mu.Lock()
		head, news := a.world.Heads[s], a.changed
		a.mu.Unlock()
		now := a.Clock.Now()
		to, result, err := b.Merge(ctx, head.V.Commit, now)
		err = a.moved(head.V, err)
		if err == nil && to != head.V.Commit {
			failpoint.Hit("merge written")
			next := pando.StateHead{Service: s, Commit: to, Host: a.Host.Name, At: now, Merges: head.V.Merges + 1}
			_, err = a.commit(ctx, pando.Txn{If: []pando.Condition{{Key: next.Key(), Modified: head.Modified}}, Put: []pando.Stored{next}})
		}
		if errors.Is(err, pando.ErrConflict) {
			if err := a.news(ctx, news, 50*time.Millisecond); err != nil {
				return result, err
			}
			continue
		}
		if err != nil {
			return result, err
		}
		failpoint.Hit("merge swapped")
		if err := b.Pushed(to); err != nil {
			return result, err
		}
		failpoint.Hit("merge noted")
		return result, nil
	}
}

// errMoved reports a branch that can never be merged because main is on another host.
var errMoved = fmt.Errorf("%w: the service has moved", pando.ErrRefused)

// moved explains a missing object when main is on another host. The service moved there and pushed
// while this host was away. Objects do not follow. Only a service without a `state:` in its spec
// moves.
func (a *Agent) moved(main pando.StateHead, err error) error {
	if main.Host == a.Host.Name || !errors.Is(err, pando.ErrNotFound) {
		return err
	}
	return fmt.Errorf("%w: its state is on %s, and the commits made on %s stay there, unmerged; a spec with `state:` keeps a service at home",
		errMoved, main.Host, a.Host.Name)
}

// news waits for the change that a write collided with, at most for most.
func (a *Agent) news(ctx context.Context, changed <-chan struct{}, most time.Duration) error {
	timer, stop := a.Clock.After(most)
	defer stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-changed:
	case <-timer:
	}
	return nil
}

// dropBranch discards the branch of an instance without a record. It first merges the rest of the
// branch into main, because an agent can die at any step before.
func (a *Agent) dropBranch(ctx context.Context, s pando.ServiceKey, i pando.InstanceID) error {
	a.mu.Lock()
	svc, known := a.world.Services[s]
	_, pushed := a.world.Heads[s]
	a.mu.Unlock()
	b, err := a.repo(s, svc.V.Target).Born(ctx, i, a.head(s))
	if err != nil {
		return err
	}
	if known || pushed { // a purged service has no main to merge into
		if _, err := a.merge(ctx, s, b); err != nil {
			return err
		}
	}
	return b.Discard(ctx)
}

// dropStrangers drops the branches that instances of a former agent left behind.
func (a *Agent) dropStrangers(ctx context.Context) {
	services, err := state.Services(a.Objects)
	if err != nil {
		a.Log.Error("list the branches of this host", "error", err)
		return
	}
	for _, s := range services {
		branches, err := state.Branches(a.Objects, s)
		if err != nil {
			a.Log.Error("list the branches of this host", "error", err)
		}
		for _, i := range slices.Sorted(maps.Keys(branches)) {
			a.mu.Lock()
			_, here := a.world.Instances[i]
			a.mu.Unlock()
			if here {
				continue
			}
			if err := a.dropBranch(ctx, s, i); err != nil && ctx.Err() == nil {
				a.Log.Warn("a branch without an instance stays until the next start", "instance", i, "error", err)
			}
		}
	}
}

// StateLog implements pando.HostAgent.
func (a *Agent) StateLog(_ context.Context, s pando.ServiceKey, most int) ([]pando.StateCommit, error) {
	return state.Open(a.Objects, s, nil).Log(a.head(s), most)
}

// State implements pando.HostAgent.
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

// Logs implements pando.HostAgent.
func (a *Agent) Logs(ctx context.Context, i pando.InstanceID, lines int, follow bool) (io.ReadCloser, error) {
	a.mu.Lock()
	s := a.world.Instances[i].V.Service
	a.mu.Unlock()
	return a.OpenLog(ctx, s, i, lines, follow)
}
