package world

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
)

// moody is a store whose reads and watches fail with some errors, one after another.
type moody struct {
	pando.Registry
	errs []error // of the snapshots and watches, nil = a good one
}

func (m *moody) next() error {
	if len(m.errs) == 0 {
		return nil
	}
	err := m.errs[0]
	m.errs = m.errs[1:]
	return err
}

func (m *moody) Snapshot(context.Context, pando.Key) (pando.Snapshot, error) {
	return pando.Snapshot{Revision: 7}, m.next()
}

func (m *moody) Watch(
	ctx context.Context, _ pando.Key, after pando.StoreRevision,
) <-chan pando.Batch {
	out := make(chan pando.Batch, 1)
	if err := m.next(); err != nil {
		out <- pando.Batch{Revision: after, Err: err}
		close(out)
		return out
	}
	out <- pando.Batch{Revision: after + 1}
	context.AfterFunc(ctx, func() { close(out) })
	return out
}

type virtual struct{}

func (virtual) Now() time.Time { return time.Now() }
func (virtual) After(d time.Duration) (<-chan time.Time, func()) {
	t := time.NewTimer(d)
	return t.C, func() { t.Stop() }
}

// An answer of the store that this build does not know ends neither an agent nor a control.
func TestNoErrorOfTheStoreEndsAFollower(t *testing.T) {
	odd := errors.New("rpc error: code = Internal desc = odd")
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		store := &moody{errs: []error{
			odd, pando.ErrUnavailable, nil, odd, nil, pando.ErrCompacted, nil, pando.ErrInvalid,
			pando.ErrTooLarge, nil, pando.ErrUnavailable, odd, nil, nil,
		}}
		var seen pando.StoreRevision
		done := make(chan error, 1)
		go func() {
			done <- Follow(ctx, virtual{}, store, pando.Root, func(b pando.Batch, _ bool) {
				seen = b.Revision
			})
		}()
		time.Sleep(time.Minute)
		if len(store.errs) > 0 || seen != 8 {
			t.Errorf("at revision %d, errors left: %v", seen, store.errs)
		}
		end()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

func TestAHostThatIsNoMemberStopsToFollow(t *testing.T) {
	store := &moody{errs: []error{pando.NotMember("h2")}}
	err := Follow(t.Context(), virtual{}, store, pando.Root, func(pando.Batch, bool) {})
	if !errors.Is(err, pando.ErrForbidden) {
		t.Error(err)
	}
}
