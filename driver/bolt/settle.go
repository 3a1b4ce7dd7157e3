package bolt

import (
	"context"
	"slices"

	"go.etcd.io/bbolt"

	"pando.run/pando"
)

// settleSometimes brings what is recent to its place, beside everything else, once it is much.
func (s *Store) settleSometimes() {
	if s.recent.size() <= recentBytesMax || !s.moving.TryLock() {
		return
	}
	s.writing.Lock()
	s.recent.generation++
	s.writing.Unlock()
	s.settling.Go(func() {
		defer s.moving.Unlock()
		// What could not be moved stays where it is, and the next write that finds it to be much tries again.
		_, _ = s.settle(s.closing, func(pando.ObjectID) bool { return true })
	})
}

// settle brings what the generations before the current one have to its place, except for what is not to be kept, and drops
// them. It may be killed anywhere: until they are dropped, all at once, they say what they said.
//
// The objects go in the order of their ids, so that a page is written once with all that goes to it.
func (s *Store) settle(ctx context.Context, keep func(pando.ObjectID) bool) (dropped int, err error) {
	stay, gone := s.recent.older(keep)
	for some := range slices.Chunk(stay, max(settleMin, len(stay)/settleTurns)) {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		if err := s.update(func(tx *bbolt.Tx) (func(), error) { return nil, s.toPlace(tx, some) }); err != nil {
			return 0, err
		}
	}
	if err := ctx.Err(); err != nil || len(stay)+len(gone) == 0 {
		return 0, err
	}
	err = s.update(func(tx *bbolt.Tx) (func(), error) {
		var again []pando.ObjectID // written since keep was asked
		for _, id := range gone {
			switch {
			case s.written[id]:
				again = append(again, id)
			case tx.Bucket(objectsBucket).Get(id[:]) == nil: // otherwise a former settle came that far
				dropped++
			}
		}
		if err := s.toPlace(tx, again); err != nil {
			return nil, err
		}
		return s.recent.forget, s.recent.drop(tx)
	})
	if err != nil {
		return 0, err
	}
	return dropped, nil
}

// toPlace brings objects to their places, as a whole. The caller holds the lock of writing.
func (s *Store) toPlace(tx *bbolt.Tx, ids []pando.ObjectID) error {
	objects := tx.Bucket(objectsBucket)
	for _, id := range ids {
		if objects.Get(id[:]) != nil {
			continue // a former settle came that far
		}
		value := s.recent.of[id].value
		if _, _, there := place(value); !there {
			o, _, err := s.read(tx, id)
			if err == nil {
				value, err = inPlace(tx, o.Kind, o.Body)
			}
			if err != nil {
				return err
			}
		}
		if err := objects.Put(id[:], value); err != nil {
			return err
		}
	}
	return nil
}
