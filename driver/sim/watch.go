package sim

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"pando.run/pando"
)

// watching finds the watchers that a commit concerns. A commit beside thousands of hosts wakes only
// those. The lock of the store guards it.
type watching struct {
	under map[pando.Key][]*watcher // by prefix, oldest first
	every []*watcher               // oldest first, because a map has no order
}

// watcher is a place in the commits under a prefix.
type watcher struct {
	prefix pando.Key
	after  pando.StoreRevision // the watcher has seen everything up to it
	news   []pando.Batch       // the commits after it, oldest first
	wake   chan struct{}       // holds one signal: a commit, or a fault that came or went
}

func (w *watcher) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// subscribe adds a watcher of the commits after a revision. The caller holds the lock.
func (s *store) subscribe(prefix pando.Key, after pando.StoreRevision) *watcher {
	w := &watcher{prefix: prefix, after: after, wake: make(chan struct{}, 1)}
	s.under[prefix] = append(s.under[prefix], w)
	s.every = append(s.every, w)
	s.reread(w)
	return w
}

// leave removes a watcher.
func (s *store) leave(w *watcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	other := func(o *watcher) bool { return o == w }
	if s.under[w.prefix] = slices.DeleteFunc(s.under[w.prefix], other); len(s.under[w.prefix]) == 0 {
		delete(s.under, w.prefix)
	}
	s.every = slices.DeleteFunc(s.every, other)
}

// reread fills the news of a watcher from the history. The caller holds the lock.
func (s *store) reread(w *watcher) {
	w.news = nil
	at, _ := slices.BinarySearchFunc(s.history, w.after+1, byRevision)
	for _, b := range s.history[at:] {
		for _, c := range b.Changes {
			if strings.HasPrefix(string(c.Key), string(w.prefix)) {
				w.add(b.Revision, c)
			}
		}
	}
}

func byRevision(b pando.Batch, want pando.StoreRevision) int {
	return cmp.Compare(b.Revision, want)
}

// add appends a change to the news, which keep the changes of a commit together.
func (w *watcher) add(at pando.StoreRevision, c pando.Record) {
	if at <= w.after {
		return
	}
	if n := len(w.news); n == 0 || w.news[n-1].Revision != at {
		w.news = append(w.news, pando.Batch{Revision: at})
	}
	last := &w.news[len(w.news)-1]
	last.Changes = append(last.Changes, c)
}

// publish gives a commit to the watchers that it concerns. The caller holds the lock.
func (s *store) publish(b pando.Batch) {
	for _, c := range b.Changes {
		for n := range len(c.Key) + 1 {
			for _, w := range s.under[c.Key[:n]] {
				w.add(b.Revision, c)
				w.signal()
			}
		}
	}
}

// wakeAll wakes every watcher after a fault came or went. The caller holds the lock.
func (s *store) wakeAll() {
	for _, w := range s.every {
		w.signal()
	}
}

// take returns the news of a watcher, and the fault of the store after them.
func (s *store) take(w *watcher) ([]pando.Batch, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	news := w.news
	w.news, w.after = nil, max(w.after, s.revision)
	for n := range news {
		news[n].Store = s.id
	}
	if s.fault == pando.ErrStoreFull { // it can be read
		return news, nil
	}
	return news, s.fault
}

// Watch streams every commit under prefix after a revision, each after a delay, in order. It ends
// with pando.ErrUnavailable while the registry is out of reach.
func (r *Registry) Watch(
	ctx context.Context, prefix pando.Key, after pando.StoreRevision,
) <-chan pando.Batch {
	out := make(chan pando.Batch)
	go func() {
		defer close(out)
		r.mu.Lock()
		if int(after) < r.forgot {
			r.mu.Unlock()
			send(ctx, out, pando.Batch{Revision: after, Err: pando.ErrCompacted})
			return
		}
		w := r.subscribe(prefix, after)
		r.mu.Unlock()
		defer r.leave(w)
		for {
			if r.even && r.travel(ctx, "") != nil {
				return
			}
			news, fault := r.take(w)
			for _, b := range news {
				if !r.even && r.travel(ctx, "watch "+string(b.Changes[0].Key)) != nil ||
					!send(ctx, out, b) {
					return
				}
			}
			if fault != nil {
				send(ctx, out, pando.Batch{Revision: w.after, Err: fault})
				return
			}
			select {
			case <-w.wake:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

func send(ctx context.Context, out chan<- pando.Batch, b pando.Batch) bool {
	select {
	case out <- b:
		return true
	case <-ctx.Done():
		return false
	}
}
