package agent

import "context"

// turn lets one at a time do something that waits for the outside: a mutex that a context can end the wait for.
type turn chan struct{}

func newTurn() turn { return make(turn, 1) }

// take waits for the turn; give passes it on.
func (t turn) take(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t turn) give() { <-t }
