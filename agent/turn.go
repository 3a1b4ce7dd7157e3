package agent

import "context"

// turn is a mutex for work that waits for the outside. A context can end the wait for it.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

// take waits for the turn. give passes it to the next waiter.
func (t turn) take(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t turn) give() { <-t }
