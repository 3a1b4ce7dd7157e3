package etcd

import (
	"context"
	"strings"
	"sync"
	"testing"

	"pando.run/pando"
)

// Watches that fall behind and end all at once must not stop the other watches of the process. All
// watches of an etcd client share one stream by default, and its two ends then wait for each other.
func TestWatchesThatEndAtOnceStopNoOther(t *testing.T) {
	s, _ := start(t, tempDir(t))
	r := s.Registry()
	own := r.Watch(t.Context(), pando.KindService.Under(), 0)
	large := service("large")
	large.Reason = strings.Repeat("x", 100_000)
	for range 3 {
		idle, end := context.WithCancel(t.Context())
		for range 60 {
			r.Watch(idle, pando.Root, 0) // it reads nothing
		}
		var writers sync.WaitGroup
		for range 8 {
			writers.Go(func() {
				if _, err := r.Commit(t.Context(), pando.Txn{Put: []pando.Stored{large}}); err != nil {
					t.Error(err)
				}
			})
		}
		writers.Wait()
		end()
	}
	last := commit(t, r, pando.Txn{Put: []pando.Stored{service("small")}})
	for next(t, own).Revision < last {
	}
}
