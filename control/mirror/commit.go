package mirror

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"pando.run/pando"
	"pando.run/pando/world"
)

// Commit writes as the leader and applies the result at once, so that the next decision uses it.
func (m *Mirror) Commit(ctx context.Context, fence pando.Fence, t pando.Txn) error {
	t.Fence = fence
	m.Mu.Lock()
	err := m.World.Spares(t)
	m.Mu.Unlock()
	if err != nil {
		return err
	}
	at, err := m.Registry.Commit(ctx, t)
	m.NoteOutcome(err)
	if err != nil {
		return err
	}
	m.Mu.Lock()
	defer m.Mu.Unlock()
	m.Took(t, at)
	return nil
}

// Took applies this control's own write to the world. The watch delivers it again later and then
// changes nothing. The caller holds the lock.
func (m *Mirror) Took(t pando.Txn, at pando.StoreRevision) {
	m.World.At(m.Clock.Now())
	m.World.Committed(t, at)
	world.Publish(m.World, t, m.Clock.Now())
	for _, v := range t.Put {
		m.touch(v.Key())
	}
	for _, k := range t.Delete {
		m.touch(k)
	}
}

// CommitSurely commits a request. If the answer of the store is lost, it reads back whether the
// write happened. An error that is ErrUnknown leaves that open; every other error means that nothing
// was written.
func (m *Mirror) CommitSurely(ctx context.Context, t pando.Txn) (pando.StoreRevision, error) {
	at, err := m.Registry.Commit(ctx, t)
	if err == nil || len(t.Put) == 0 ||
		!errors.Is(err, pando.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) {
		return at, err
	}
	if at, done := m.readBack(ctx, t); done {
		return at, nil
	}
	return at, fmt.Errorf("%w; look again before you repeat it (`pando status`): %w", ErrUnknown, err)
}

// readBack reports whether a transaction is in the store, at a revision. A store without the records
// of the transaction may still get it later.
func (m *Mirror) readBack(
	ctx context.Context, t pando.Txn,
) (at pando.StoreRevision, done bool) {
	one := t.Put[len(t.Put)-1]
	for _, p := range t.Put {
		if p.Key().Kind() == pando.KindDecision { // its name is of this transaction alone
			one = p
		}
	}
	value, err := world.Encode(one)
	if err != nil {
		return 0, false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readBackWait)
	defer cancel()
	for {
		now, err := m.Registry.Snapshot(ctx, one.Key())
		for _, r := range now.Records {
			if r.Key == one.Key() {
				return r.Modified, bytes.Equal(r.Value, value)
			}
		}
		if err == nil {
			return 0, false
		}
		if pando.Sleep(ctx, m.Clock, readBackAgain) != nil {
			return 0, false
		}
	}
}

// Attempts is how often a write of a request is retried on top of newer records.
const Attempts = 20

// ErrUnknown is the outcome of a write that the store has not confirmed. It may have happened.
var ErrUnknown = errors.New("whether it was done is unknown")

// The reading back of a write without an answer.
const (
	readBackWait  = 3 * time.Second
	readBackAgain = 100 * time.Millisecond
)
