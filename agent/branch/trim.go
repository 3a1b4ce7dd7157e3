package branch

import (
	"context"
	"errors"

	"pando.run/pando"
	"pando.run/pando/state"
)

// TrimOften trims old history from the states of this host every TrimEvery, if there was a push. It
// returns when ctx ends.
func (b *Branches) TrimOften(ctx context.Context) {
	last := int64(0)
	for pando.Sleep(ctx, b.Clock, b.TrimEvery) == nil {
		heads, merges, ok := b.Records.Heads()
		if !ok || merges == last {
			continue
		}
		b.Settle(ctx)
		known := state.Known{Heads: heads, Alive: b.Records.Alive}
		done, err := state.Trim(ctx, b.Objects, known, b.Keep, b.Clock.Now())
		if err != nil {
			if !errors.Is(err, context.Canceled) {
				b.Log.Warn("states could not be trimmed; it is tried again",
					"in", b.TrimEvery, "error", err)
			}
			continue
		}
		last = merges
		b.Log.Info("states trimmed", "objects", done.Objects, "branches", done.Branches)
	}
}
