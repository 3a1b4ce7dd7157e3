package branch

import (
	"context"
	"errors"
	"time"

	"pando.run/pando"
	"pando.run/pando/state"
)

// TrimOften trims old history from the states of this host every TrimEvery, if there was a push or
// if main contains the branch of an ended instance. It returns when ctx ends.
func (b *Branches) TrimOften(ctx context.Context) {
	last := int64(0)
	for pando.Sleep(ctx, b.config.Clock, b.config.TrimEvery) == nil {
		heads, merges, ok := b.config.Records.Heads()
		if !ok {
			continue
		}
		b.Settle(ctx)
		known := state.Known{
			Heads: heads, Alive: b.config.Records.Alive, Elsewhere: b.runs,
			Seated: func(s pando.ServiceKey, i pando.InstanceID) bool {
				_, ok := b.config.Records.Seat(s, i)
				return ok
			},
		}
		done, err := b.trim(ctx, known, merges == last)
		if err != nil {
			if !errors.Is(err, context.Canceled) {
				b.config.Log.Warn("states could not be trimmed; it is tried again",
					"in", b.config.TrimEvery, "error", err)
			}
			continue
		}
		if last == merges && done.Branches == 0 {
			continue
		}
		last = merges
		b.config.Log.Info("states trimmed", "objects", done.Objects, "branches", done.Branches)
	}
}

// trimAgain is the wait before a trim looks again whether objects arrive from other hosts.
const trimAgain = 20 * time.Millisecond

// trim trims while no objects arrive that no ref has yet. idle: nothing was merged since the last
// trim, so history is trimmed only if a branch goes.
func (b *Branches) trim(
	ctx context.Context, known state.Known, idle bool,
) (state.Trimmed, error) {
	for !b.copies.whole.TryLock() {
		if err := pando.Sleep(ctx, b.config.Clock, trimAgain); err != nil {
			return state.Trimmed{}, err
		}
	}
	defer b.copies.whole.Unlock()
	buried := 0
	if idle {
		var err error
		if buried, err = state.Bury(ctx, b.config.Objects, known); err != nil || buried == 0 {
			return state.Trimmed{}, err
		}
	}
	done, err := state.Trim(ctx, b.config.Objects, known, b.config.Keep, b.config.Clock.Now())
	done.Branches += buried
	return done, err
}
