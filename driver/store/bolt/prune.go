package bolt

import (
	"context"
	"fmt"
	"slices"

	"go.etcd.io/bbolt"

	"pando.run/pando"
)

const (
	lookMax  = 4096 // objects per read: the file cannot reuse pages during a read
	pruneMax = 256  // objects per deleting write: other writes wait for it
)

// Prune implements pando.Objects. Later writes reuse the freed pages; the file itself does not
// shrink.
func (s *Store) Prune(
	ctx context.Context, live func() (func(pando.ObjectID) bool, error),
) (deleted int, err error) {
	s.moving.Lock()
	defer s.moving.Unlock()
	s.note(map[pando.ObjectID]bool{})
	defer s.note(nil)
	defer s.cache.clear()
	keep, err := live()
	if err == nil {
		deleted, err = s.settle(ctx, keep)
	}
	for from := []byte{}; err == nil && from != nil; {
		var gone []pando.ObjectID
		var n int
		if gone, from, err = s.garbage(from, keep); err == nil {
			n, err = s.drop(gone)
		}
		deleted += n
		if err == nil {
			err = ctx.Err()
		}
	}
	if err != nil {
		return deleted, fmt.Errorf("prune states in %s: %w", s.path, full(err))
	}
	return deleted, nil
}

// note starts or ends the record of written ids. It takes the write lock, so each write falls
// wholly before or wholly after this moment.
func (s *Store) note(written map[pando.ObjectID]bool) {
	s.writing.Lock()
	defer s.writing.Unlock()
	s.written = written
	s.recent.generation++
}

// garbage scans some objects, starting at an id. It returns the ids to delete and the id to
// continue from, or nil at the end.
func (s *Store) garbage(
	from []byte, keep func(pando.ObjectID) bool,
) (gone []pando.ObjectID, next []byte, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		c := tx.Bucket(objectsBucket).Cursor()
		k, _ := c.Seek(from)
		for n := 0; k != nil && n < lookMax && len(gone) < pruneMax; n++ {
			if id := pando.ObjectID(k); !keep(id) {
				gone = append(gone, id)
			}
			k, _ = c.Next()
		}
		next = slices.Clone(k)
		return nil
	})
	return gone, next, err
}

// drop deletes objects, except those written since the prune began.
func (s *Store) drop(gone []pando.ObjectID) (deleted int, err error) {
	if len(gone) == 0 {
		return 0, nil
	}
	err = s.update(func(tx *bbolt.Tx) (func(), error) {
		for _, id := range gone {
			if s.written[id] {
				continue
			}
			if err := deleteObject(tx, id); err != nil {
				return nil, err
			}
			deleted++
		}
		return nil, nil
	})
	if err != nil {
		return 0, err
	}
	return deleted, nil
}
