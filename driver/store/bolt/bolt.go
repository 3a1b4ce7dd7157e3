// Package bolt stores the objects and refs of one host's states in one file.
//
// Every update is one transaction and one fsync. It never parses an object: package state defines
// commits and trees.
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

// layout is the version of the file format. Layout 1 had no generations; the store reads such a
// file as one with empty generations.
const layout = 2

// lockWaitMax bounds how long Open waits for another process to release the file.
const lockWaitMax = 3 * time.Second

var (
	objectsBucket = []byte("objects") // id -> kind's first letter, then the body or its location
	piecesBucket  = []byte("pieces")  // number -> part of a body
	refsBucket    = []byte("refs")    // name -> id
	metaBucket    = []byte("meta")
	layoutKey     = []byte("layout")
)

var errDamaged = errors.New("the file is damaged; restore it from a copy, or forget everything " +
	"with `pando down --purge`")

// Store is one file. Its methods may be called from any goroutine.
type Store struct {
	db     *bbolt.DB
	path   string
	cache  cache
	recent recent
	mapped mapped

	writing sync.Mutex              // held during a write, until the index matches the file
	written map[pando.ObjectID]bool // since the prune began, else nil; guarded by writing

	moving   sync.Mutex // held by a prune or a settle
	settling sync.WaitGroup
	closing  context.Context
	close    context.CancelFunc
}

// Open opens or creates the file. If most of the file is free, Open first rewrites it without the
// free pages.
func Open(path string) (*Store, error) {
	s, err := load(path)
	// A file that cannot be copied is used as it is.
	if err != nil || !s.sparse() || s.copyUsed() != nil {
		return s, err
	}
	if err := errors.Join(s.Close(), s.takeCopy()); err != nil {
		return nil, fmt.Errorf("shrink the states in %s: %w", path, full(err))
	}
	return load(path)
}

func load(path string) (*Store, error) {
	db, err := openFile(path)
	if err != nil {
		if errors.Is(err, bbolterrors.ErrTimeout) {
			return nil, fmt.Errorf(
				"open the states in %s: another agent has them open; stop it with `pando down`", path)
		}
		if errors.Is(err, bbolterrors.ErrInvalid) || errors.Is(err, bbolterrors.ErrChecksum) ||
			errors.Is(err, bbolterrors.ErrVersionMismatch) {
			err = fmt.Errorf("%w: %w", err, errDamaged)
		}
		return nil, fmt.Errorf("open the states in %s: %w", path, full(err))
	}
	s := &Store{db: db, path: path}
	s.closing, s.close = context.WithCancel(context.Background())
	if err := s.prepare(); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	s.giveBack() // opening the file read every page to find the free ones
	return s, nil
}

func openFile(path string) (*bbolt.DB, error) {
	return bbolt.Open(path, 0o600,
		&bbolt.Options{Timeout: lockWaitMax, FreelistType: bbolt.FreelistMapType, NoFreelistSync: true})
}

func (s *Store) prepare() error {
	err := s.db.Update(func(tx *bbolt.Tx) error {
		for _, name := range [][]byte{objectsBucket, piecesBucket, refsBucket, metaBucket} {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		meta := tx.Bucket(metaBucket)
		b := meta.Get(layoutKey)
		if b != nil && binary.BigEndian.Uint32(b) > layout {
			return fmt.Errorf("the file has layout %d, this build reads up "+
				"to %d: upgrade pando on this host", binary.BigEndian.Uint32(b), layout)
		}
		if err := meta.Put(layoutKey, binary.BigEndian.AppendUint32(nil, layout)); err != nil {
			return err
		}
		return s.recent.load(tx)
	})
	if err != nil {
		return fmt.Errorf("prepare the states in %s: %w", s.path, full(err))
	}
	return nil
}

// Close cancels a running settle, waits for its end and closes the file.
func (s *Store) Close() error {
	s.close()
	s.settling.Wait()
	return s.db.Close()
}

// full marks the error of a full disk as pando.ErrStoreFull.
func full(err error) error {
	if errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("%w: %w", pando.ErrStoreFull, err)
	}
	return err
}

// Object implements pando.Objects. The caller must not change the body.
func (s *Store) Object(id pando.ObjectID) (pando.ObjectKind, []byte, error) {
	if o, ok := s.cache.get(id); ok {
		return o.Kind, o.Body, nil
	}
	s.recent.RLock() // a delta's base stays in the index until the delta is read
	defer s.recent.RUnlock()
	var o pando.Object
	err := s.db.View(func(tx *bbolt.Tx) (err error) {
		var ok bool
		if o, ok, err = s.read(tx, id); err == nil && !ok {
			err = pando.ErrNotFound
		}
		return err
	})
	if err != nil {
		return "", nil, fmt.Errorf("object %s: %w", id, err)
	}
	s.cache.put(o)
	s.touched(len(o.Body))
	return o.Kind, o.Body, nil
}

// read returns an object; ok is false if the object does not exist.
func (s *Store) read(tx *bbolt.Tx, id pando.ObjectID) (o pando.Object, ok bool, err error) {
	if o, ok = s.cache.get(id); ok {
		return o, true, nil
	}
	value := s.recent.of[id].value
	if value == nil {
		value = tx.Bucket(objectsBucket).Get(id[:])
	}
	if len(value) == 0 {
		return o, false, nil
	}
	o.ID = id
	from, differs := baseOf(value)
	if !differs {
		o.Kind = kinds[value[0]&^inPieces]
		o.Body, err = bodyOf(tx, value)
		return o, err == nil, err
	}
	base, ok, err := s.read(tx, from)
	if err == nil && !ok {
		err = fmt.Errorf("its base %s is not there: %w", from, errDamaged)
	}
	if err != nil {
		return o, false, err
	}
	o.Kind = kinds[value[1]]
	o.Body, err = splice(value, base.Body)
	return o, err == nil, err
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
		for k, v := c.Seek([]byte(prefix)); k != nil &&
			strings.HasPrefix(string(k), prefix); k, v = c.Next() {
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
	err := s.update(func(tx *bbolt.Tx) (func(), error) {
		if err := check(tx.Bucket(refsBucket), u.If); err != nil {
			return nil, err
		}
		fresh, err := s.putObjects(tx, u.Objects)
		if err == nil {
			err = putRefs(tx.Bucket(refsBucket), u.Refs)
		}
		return func() { s.recent.add(fresh) }, err
	})
	if err != nil {
		return fmt.Errorf("write states to %s: %w", s.path, full(err))
	}
	for _, o := range u.Objects {
		if o.Kind != pando.BlobObject { // a blob may be part of a larger value
			s.cache.put(pando.Object{ID: o.ID, Kind: o.Kind, Body: o.Body})
		}
	}
	s.settleSometimes()
	return nil
}

// update runs one write transaction. Once it is durable, update changes the index to match, before
// the next write.
func (s *Store) update(write func(*bbolt.Tx) (follow func(), err error)) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	var follow func()
	err := s.db.Update(func(tx *bbolt.Tx) (err error) {
		follow, err = write(tx)
		return err
	})
	if err == nil && follow != nil {
		follow()
	}
	return err
}

func check(refs *bbolt.Bucket, conditions map[string]pando.ObjectID) error {
	for name, want := range conditions {
		var have pando.ObjectID
		copy(have[:], refs.Get([]byte(name)))
		if have != want {
			return fmt.Errorf("ref %s: %w: it is %s, not %s", name, pando.ErrConflict, have, want)
		}
	}
	return nil
}

func putRefs(bucket *bbolt.Bucket, refs map[string]pando.ObjectID) error {
	for name, id := range refs {
		var err error
		if id.IsZero() {
			err = bucket.Delete([]byte(name))
		} else {
			err = bucket.Put([]byte(name), append([]byte(nil), id[:]...))
		}
		if err != nil {
			return err
		}
	}
	return nil
}
