package bolt

import (
	"context"
	"slices"

	"go.etcd.io/bbolt"

	"pando.run/pando"
)

// settleSometimes starts a settle in the background once recent objects exceed recentBytesMax.
func (s *Store) settleSometimes() {
	if s.recent.size() <= recentBytesMax || !s.moving.TryLock() {
		return
	}
	s.writing.Lock()
	s.recent.generation++
	s.writing.Unlock()
	s.settling.Go(func() {
		defer s.moving.Unlock()
		// Objects that could not be moved stay in their generation. The next write over recentBytesMax
		// tries again.
		_, _ = s.settle(s.closing, func(pando.ObjectID) bool { return true })
	})
}

// settle moves the objects of older generations that keep accepts into the object bucket, then
// drops those generations in one transaction. A crash before that leaves them readable.
//
// The objects move in the order of their ids, so that each page is written once.
func (s *Store) settle(
	ctx context.Context, keep func(pando.ObjectID) bool,
) (dropped int, err error) {
	stay, gone := s.recent.older(keep)
	for some := range slices.Chunk(stay, max(settleMin, len(stay)/settleTurns)) {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		err := s.update(func(tx *bbolt.Tx) (func(), error) { return nil, s.toPlace(tx, some) })
		if err != nil {
			return 0, err
		}
	}
	if err := ctx.Err(); err != nil || len(stay)+len(gone) == 0 {
		return 0, err
	}
	err = s.update(func(tx *bbolt.Tx) (func(), error) {
		var again []pando.ObjectID // written since the prune began
		for _, id := range gone {
			switch {
			case s.written[id]:
				again = append(again, id)
			case tx.Bucket(objectsBucket).Get(id[:]) == nil: // otherwise an earlier settle moved it
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

// toPlace writes whole objects to the object bucket. The caller holds s.writing.
func (s *Store) toPlace(tx *bbolt.Tx, ids []pando.ObjectID) error {
	objects := tx.Bucket(objectsBucket)
	for _, id := range ids {
		if objects.Get(id[:]) != nil {
			continue // an earlier settle moved it
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
