package branch

import (
	"context"
	"errors"

	"pando.run/pando"
	"pando.run/pando/state"
)

// Create announces the branch of an instance. The returned function creates it durably. Users of
// the branch wait until that function has returned.
func (b *Branches) Create(
	s pando.ServiceKey, i pando.InstanceID, revision int,
) func(context.Context) {
	n := &opening{service: s, over: make(chan struct{})}
	b.mu.Lock()
	b.open[i] = n
	b.mu.Unlock()
	return func(ctx context.Context) {
		defer close(n.over)
		branch, err := b.create(ctx, s, i, revision)
		if err != nil {
			b.config.Log.Error("open the state of an instance", "instance", i, "error", err)
			return
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		n.branch = branch
	}
}

// Reopen returns the branch of an instance. It creates the branch if an earlier attempt failed.
func (b *Branches) Reopen(
	ctx context.Context, s pando.ServiceKey, i pando.InstanceID, revision int,
) (*state.Branch, error) {
	branch, err := b.Of(ctx, i)
	if !errors.Is(err, ErrNoState) {
		return branch, err
	}
	branch, err = b.createOnce(ctx, s, i, revision)
	if err != nil {
		return nil, err
	}
	n := &opening{service: s, over: make(chan struct{}), branch: branch}
	close(n.over)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open[i] = n
	return branch, nil
}

// create opens the branch of an instance. It waits for a main that is on no host that answers, at
// most copyWaitMax.
func (b *Branches) create(
	ctx context.Context, s pando.ServiceKey, i pando.InstanceID, revision int,
) (*state.Branch, error) {
	until := b.config.Clock.Now().Add(copyWaitMax)
	for {
		news := b.config.Records.News()
		branch, err := b.createOnce(ctx, s, i, revision)
		if !errors.Is(err, pando.ErrUnavailable) || !b.config.Clock.Now().Before(until) {
			return branch, err
		}
		if werr := b.awaitNews(ctx, news); werr != nil {
			return nil, werr
		}
	}
}

func (b *Branches) createOnce(
	ctx context.Context, s pando.ServiceKey, i pando.InstanceID, revision int,
) (*state.Branch, error) {
	main := b.config.Records.Main(s).V.Commit
	if err := b.Bring(ctx, s, main); err != nil {
		return nil, err
	}
	return b.repo(s, revision).Born(ctx, i, main)
}
