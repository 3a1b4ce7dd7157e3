package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"pando.run/pando"
	"pando.run/pando/world"
)

// errUnknown is the outcome of a write that the store has not confirmed. It may have happened.
var errUnknown = errors.New("whether it was done is unknown")

// The reading back of a write without an answer.
const (
	readBackWait  = 3 * time.Second
	readBackAgain = 100 * time.Millisecond
)

// commitSurely commits a request. If the answer of the store is lost, it reads back whether the
// write happened. An error that is errUnknown leaves that open; every other error means that nothing
// was written.
func (c *view) commitSurely(ctx context.Context, t pando.Txn) (pando.StoreRevision, error) {
	at, err := c.Registry.Commit(ctx, t)
	if err == nil || len(t.Put) == 0 ||
		!errors.Is(err, pando.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) {
		return at, err
	}
	if at, done := c.readBack(ctx, t); done {
		return at, nil
	}
	return at, fmt.Errorf("%w; look again before you repeat it (`pando status`): %w", errUnknown, err)
}

// readBack reports whether a transaction is in the store, at a revision. A store without the records
// of the transaction may still get it later.
func (c *view) readBack(
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
		now, err := c.Registry.Snapshot(ctx, one.Key())
		for _, r := range now.Records {
			if r.Key == one.Key() {
				return r.Modified, bytes.Equal(r.Value, value)
			}
		}
		if err == nil {
			return 0, false
		}
		if pando.Sleep(ctx, c.Clock, readBackAgain) != nil {
			return 0, false
		}
	}
}
