package branch

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"pando.run/pando"
	"pando.run/pando/state"
)

// The wait between two attempts to drop the branches of former instances. It doubles each time.
const (
	strangersWaitMin = time.Second
	strangersWaitMax = time.Minute
)

// DropStrangers drops the branches that instances of a former agent left behind. It tries again
// until all are dropped. It returns at once while another call drops them.
func (b *Branches) DropStrangers(ctx context.Context) {
	if !b.dropping.CompareAndSwap(false, true) {
		return
	}
	defer b.dropping.Store(false)
	for wait := strangersWaitMin; ; wait = min(2*wait, strangersWaitMax) {
		err := b.dropStrangers(ctx)
		if err == nil {
			return
		}
		if wait == strangersWaitMin && ctx.Err() == nil {
			b.config.Log.Warn("branches without an instance are left: it is tried again", "error", err)
		}
		if pando.Sleep(ctx, b.config.Clock, wait) != nil {
			return
		}
	}
}

// dropStrangers makes one attempt, and returns the errors of the branches that are left. The branch
// of a service that has moved stays.
func (b *Branches) dropStrangers(ctx context.Context) error {
	services, err := state.Services(b.config.Objects)
	errs := []error{err}
	for _, s := range services {
		branches, err := state.Branches(b.config.Objects, s)
		errs = append(errs, err)
		for _, i := range slices.Sorted(maps.Keys(branches)) {
			if b.config.Records.Alive(i) || b.several(s) {
				continue // Tend drops those of a state on several hosts
			}
			if err := b.Drop(ctx, s, i); !errors.Is(err, ErrMoved) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}
