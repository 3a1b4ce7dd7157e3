// Package turn has a mutex for work that waits for the outside.
package turn

import "context"

// Turn is a mutex. A context can end the wait for it.
type Turn chan struct{}

// New returns a free turn.
func New() Turn { return make(Turn, 1) }

// Take waits for the turn.
func (t Turn) Take(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Give passes the turn to the next waiter.
func (t Turn) Give() { <-t }
