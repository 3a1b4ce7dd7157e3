package storeguard

import (
	"context"
	"fmt"

	"pando.run/pando"
)

// Watch implements pando.Registry. It ends with ErrCompacted, which asks for a new snapshot, when
// another store answers. A replaced store may be silent, because it has yet to reach the revision
// of the watch. The guard looks at the store after a silence.
func (a *Guard) Watch(
	ctx context.Context, prefix pando.Key, after pando.StoreRevision,
) <-chan pando.Batch {
	out := make(chan pando.Batch)
	a.mu.Lock()
	w := watch{a, prefix, after, a.issued[prefix]}
	a.mu.Unlock()
	go func() {
		defer close(out)
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		in := a.Registry.Watch(ctx, prefix, after)
		for {
			timer, stop := a.clock.After(silenceMax)
			var b pando.Batch
			open := true
			select {
			case b, open = <-in:
				w.take(&b)
			case <-timer:
				if b = (pando.Batch{Revision: w.after, Err: w.look(ctx)}); b.Err == nil {
					continue
				}
			case <-ctx.Done():
				open = false
			}
			stop()
			if !open {
				return
			}
			select {
			case out <- b:
			case <-ctx.Done():
				return
			}
			if b.Err != nil {
				return
			}
		}
	}()
	return out
}

// watch is one running watch.
type watch struct {
	a      *Guard
	prefix pando.Key
	after  pando.StoreRevision
	store  pando.StoreID // of the snapshot that the watch continues; 0: unknown
}

// take checks a batch. It replaces the batch by an error if another store sent it.
func (w *watch) take(b *pando.Batch) {
	switch {
	case b.Err != nil:
		return
	case w.store != 0 && b.Store != 0 && b.Store != w.store, b.Revision < w.after:
		*b = pando.Batch{Revision: w.after, Err: w.replaced()}
		return
	}
	w.after = b.Revision
	for _, r := range b.Changes {
		if c, err := clusterOf([]pando.Record{r}); err == nil && c != nil {
			w.a.mu.Lock()
			if w.a.seen.Cluster == "" || w.a.seen.Cluster == c.ID {
				w.a.see(*c, b.Revision)
			}
			w.a.mu.Unlock()
		}
	}
	w.a.note(b.Revision)
}

func (w *watch) replaced() error {
	w.a.mu.Lock()
	defer w.a.mu.Unlock()
	w.a.store = 0 // the next read checks the store
	return fmt.Errorf("%w: another store answers the watch of %s*", pando.ErrCompacted, w.prefix)
}

// look reads the store's record of itself. Many watches of a quiet store share one answer.
func (a *Guard) look(ctx context.Context) (pando.Snapshot, error) {
	if err := a.looking.Take(ctx); err != nil {
		return pando.Snapshot{}, err
	}
	defer a.looking.Give()
	if now := a.clock.Now(); a.lookAt.IsZero() || now.Sub(a.lookAt) >= silenceMax/2 {
		s, err := a.Registry.Snapshot(ctx, pando.ClusterKey)
		if err != nil {
			return s, err
		}
		a.looked, a.lookAt = s, now
	}
	return a.looked, nil
}

// look returns an error if the store is not the one of the watch any more.
func (w *watch) look(ctx context.Context) error {
	s, err := w.a.look(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("the store is %w: it is silent: %w", pando.ErrUnavailable, err)
	case w.store != 0 && s.Store != w.store, s.Revision < w.after:
		return w.replaced()
	}
	w.a.note(w.after)
	return nil
}
