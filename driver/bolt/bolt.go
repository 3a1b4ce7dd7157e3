// Package bolt keeps the objects and refs of one host's states in one file.
//
// Every update is one transaction and one fsync. It never looks into an object: what a commit or a tree means is the
// business of package state.
package bolt

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"

	"pando.run/pando"
)

var _ pando.Objects = (*Store)(nil)

// lockWaitMax is how long Open waits for another process to let go of the file.
const lockWaitMax = 3 * time.Second

// cacheObjectsMax bounds the memory of recently used objects.
const cacheObjectsMax = 4096

var (
	objectsBucket = []byte("objects") // id -> kind's first letter, body
	refsBucket    = []byte("refs")    // name -> id
	metaBucket    = []byte("meta")
	layoutKey     = []byte("layout")
)

// Store is one file. Its methods may be called from any goroutine.
type Store struct {
	db    *bbolt.DB
	path  string
	mu    sync.Mutex
	cache map[pando.ObjectID]cached
}

type cached struct {
	kind pando.ObjectKind
	body []byte
}

// Open opens the file, or makes it.
func Open(path string) (*Store, error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockWaitMax, FreelistType: bbolt.FreelistMapType, NoFreelistSync: true})
	if err != nil {
		if errors.Is(err, bbolterrors.ErrTimeout) {
			return nil, fmt.Errorf("open the states in %s: another agent has them open; stop it with `pando down`", path)
		}
		return nil, fmt.Errorf("open the states in %s: %w", path, full(err))
	}
	s := &Store{db: db, path: path, cache: map[pando.ObjectID]cached{}}
	if err := s.prepare(); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return s, nil
}

func (s *Store) prepare() error {
	err := s.db.Update(func(tx *bbolt.Tx) error {
		for _, name := range [][]byte{objectsBucket, refsBucket, metaBucket} {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		meta := tx.Bucket(metaBucket)
		if b := meta.Get(layoutKey); b != nil {
			if n := binary.BigEndian.Uint32(b); n > pando.Layout {
				return fmt.Errorf("the file has layout %d, this build reads up to %d: upgrade pando on this host", n, pando.Layout)
			}
			return nil
		}
		return meta.Put(layoutKey, binary.BigEndian.AppendUint32(nil, pando.Layout))
	})
	if err != nil {
		return fmt.Errorf("prepare the states in %s: %w", s.path, full(err))
	}
	return nil
}

// Close lets go of the file.
func (s *Store) Close() error { return s.db.Close() }

// full names a disk without room.
func full(err error) error {
	if errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("%w: %w", pando.ErrStoreFull, err)
	}
	return err
}

var letters = map[pando.ObjectKind]byte{pando.BlobObject: 'b', pando.TreeObject: 't', pando.CommitObject: 'c'}
var kinds = map[byte]pando.ObjectKind{'b': pando.BlobObject, 't': pando.TreeObject, 'c': pando.CommitObject}

// Object implements pando.Objects. The body must not be changed.
func (s *Store) Object(id pando.ObjectID) (pando.ObjectKind, []byte, error) {
	s.mu.Lock()
	c, ok := s.cache[id]
	s.mu.Unlock()
	if ok {
		return c.kind, c.body, nil
	}
	err := s.db.View(func(tx *bbolt.Tx) error {
		v := tx.Bucket(objectsBucket).Get(id[:])
		if v == nil {
			return fmt.Errorf("object %s: %w", id, pando.ErrNotFound)
		}
		c = cached{kinds[v[0]], append([]byte(nil), v[1:]...)}
		return nil
	})
	if err != nil {
		return "", nil, err
	}
	s.remember(id, c)
	return c.kind, c.body, nil
}

func (s *Store) remember(id pando.ObjectID, c cached) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.cache) >= cacheObjectsMax {
		clear(s.cache)
	}
	s.cache[id] = c
}

// Ref implements pando.Objects.
func (s *Store) Ref(name string) (id pando.ObjectID, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		v := tx.Bucket(refsBucket).Get([]byte(name))
		if v == nil {
			return fmt.Errorf("ref %s: %w", name, pando.ErrNotFound)
		}
		id = pando.ObjectID(v)
		return nil
	})
	return id, err
}

// Refs implements pando.Objects.
func (s *Store) Refs(prefix string) (map[string]pando.ObjectID, error) {
	out := map[string]pando.ObjectID{}
	err := s.db.View(func(tx *bbolt.Tx) error {
		c := tx.Bucket(refsBucket).Cursor()
		for k, v := c.Seek([]byte(prefix)); k != nil && strings.HasPrefix(string(k), prefix); k, v = c.Next() {
			out[string(k)] = pando.ObjectID(v)
		}
		return nil
	})
	return out, err
}

// Update implements pando.Objects.
func (s *Store) Update(_ context.Context, u pando.ObjectsUpdate) error {
	if len(u.Objects)+len(u.Refs) == 0 {
		return nil
	}
	err := s.db.Update(func(tx *bbolt.Tx) error {
		refs, objects := tx.Bucket(refsBucket), tx.Bucket(objectsBucket)
		for name, want := range u.If {
			var have pando.ObjectID
			copy(have[:], refs.Get([]byte(name)))
			if have != want {
				return fmt.Errorf("ref %s: %w: it is %s, not %s", name, pando.ErrConflict, have, want)
			}
		}
		for _, o := range u.Objects {
			if err := objects.Put(o.ID[:], append([]byte{letters[o.Kind]}, o.Body...)); err != nil {
				return err
			}
		}
		for name, id := range u.Refs {
			var err error
			if id.IsZero() {
				err = refs.Delete([]byte(name))
			} else {
				err = refs.Put([]byte(name), append([]byte(nil), id[:]...))
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("write states to %s: %w", s.path, full(err))
	}
	for _, o := range u.Objects {
		s.remember(o.ID, cached{o.Kind, o.Body})
	}
	return nil
}

// Prune implements pando.Objects.
func (s *Store) Prune(ctx context.Context, keep func(pando.ObjectID) bool) (int, error) {
	var gone [][]byte
	err := s.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(objectsBucket).ForEach(func(k, _ []byte) error {
			if !keep(pando.ObjectID(k)) {
				gone = append(gone, append([]byte(nil), k...))
			}
			return ctx.Err()
		})
	})
	if err != nil || len(gone) == 0 {
		return 0, err
	}
	err = s.db.Update(func(tx *bbolt.Tx) error {
		for _, k := range gone {
			if err := tx.Bucket(objectsBucket).Delete(k); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("prune states in %s: %w", s.path, full(err))
	}
	s.mu.Lock()
	clear(s.cache)
	s.mu.Unlock()
	return len(gone), nil
}
