package bolt

import (
	"bytes"
	"encoding/binary"
	"maps"
	"slices"
	"sync"

	"go.etcd.io/bbolt"

	"pando.run/pando"
)

// Object ids are hashes. Written directly to the object bucket, each object would rewrite a page
// that nothing else in its update touches. An update therefore appends objects to a generation, a
// bucket in the order of writing with an index in memory. Settle moves them to the object bucket
// later, many at a time. It runs when recent objects grow large, and at a prune, which moves only
// objects still needed.
//
//	update ──► generation n ──┐
//	           generation … ──┴─ settle ──► objects, pieces
//
// A generation is a stream of entries, cut into pieces: id, length of the value as a uvarint,
// value.
const (
	recentBytesMax = 4 << 20 // of values and their index entries
	recentEntry    = 64      // bytes of an index entry
	updateBytesMax = 1 << 20 // the rest of a larger update goes to the object bucket at once
	wholeBytesMax  = 4 << 10 // a larger body goes into pieces at once
	settleTurns    = 16      // writes per settle, about: other writes run in between
)

// settleMin is the least number of objects that one write of a settle moves. Tests lower it.
var settleMin = 256

// generationName is the prefix of a generation's bucket name; the generation's number follows.
var generationName = []byte("recent ")

// recent is the index of objects that are not in the object bucket yet. Only the holder of the
// store's write lock changes it. That holder may read it without the index's own lock.
type recent struct {
	sync.RWMutex
	of         map[pando.ObjectID]young
	bytes      int
	generation uint64 // the current one, which updates append to
}

// young is one recent object. Its value is a value for the object bucket, a whole body up to
// wholeBytesMax, or a delta.
type young struct {
	value      []byte
	generation uint64
	deltas     int // in the chain down to a whole body
}

func (r *recent) add(fresh map[pando.ObjectID]young) {
	r.Lock()
	defer r.Unlock()
	for id, y := range fresh {
		r.put(id, y)
	}
}

func (r *recent) put(id pando.ObjectID, y young) {
	r.of[id] = y
	r.bytes += len(y.value) + recentEntry
}

func (r *recent) size() int {
	r.RLock()
	defer r.RUnlock()
	return r.bytes
}

// older returns the ids of objects in older generations. stay, sorted, has the objects that keep
// accepts and those that have pieces already. gone has the others.
func (r *recent) older(keep func(pando.ObjectID) bool) (stay, gone []pando.ObjectID) {
	r.RLock()
	defer r.RUnlock()
	for id, y := range r.of {
		if y.generation >= r.generation {
			continue
		}
		if _, _, there := place(y.value); there || keep(id) {
			stay = append(stay, id)
		} else {
			gone = append(gone, id)
		}
	}
	slices.SortFunc(stay, func(a, b pando.ObjectID) int { return bytes.Compare(a[:], b[:]) })
	return stay, gone
}

// drop deletes the buckets of older generations from the file.
func (r *recent) drop(tx *bbolt.Tx) error {
	var names [][]byte
	err := tx.ForEach(func(name []byte, _ *bbolt.Bucket) error {
		if n, ok := generationOf(name); ok && n < r.generation {
			names = append(names, slices.Clone(name))
		}
		return nil
	})
	for _, name := range names {
		if err == nil {
			err = tx.DeleteBucket(name)
		}
	}
	return err
}

// forget removes the objects of older generations from the index.
func (r *recent) forget() {
	r.Lock()
	defer r.Unlock()
	maps.DeleteFunc(r.of, func(_ pando.ObjectID, y young) bool {
		if y.generation < r.generation {
			r.bytes -= len(y.value) + recentEntry
			return true
		}
		return false
	})
}

// load reads all generations of a file into the index.
func (r *recent) load(tx *bbolt.Tx) error {
	r.of, r.generation = map[pando.ObjectID]young{}, 1
	return tx.ForEach(func(name []byte, b *bbolt.Bucket) error { // in the order of their numbers
		n, ok := generationOf(name)
		if !ok {
			return nil
		}
		var stream []byte
		err := b.ForEach(func(_, piece []byte) error {
			stream = append(stream, piece...)
			return nil
		})
		r.generation = n
		for err == nil && len(stream) > 0 {
			id, value, after, ok := cutEntry(stream)
			if !ok {
				return errDamaged
			}
			y := young{value: value, generation: n}
			if base, ok := baseOf(value); ok {
				y.deltas = r.of[base].deltas + 1
			}
			r.put(id, y)
			stream = after
		}
		return err
	})
}

func generationOf(bucket []byte) (n uint64, ok bool) {
	number, ok := bytes.CutPrefix(bucket, generationName)
	if !ok || len(number) != 8 {
		return 0, false
	}
	return binary.BigEndian.Uint64(number), true
}

func cutEntry(stream []byte) (id pando.ObjectID, value, after []byte, ok bool) {
	if len(stream) < len(id) {
		return id, nil, nil, false
	}
	rest := stream[copy(id[:], stream):]
	n, width := binary.Uvarint(rest)
	if width <= 0 || n == 0 || n > uint64(len(rest)-width) {
		return id, nil, nil, false
	}
	rest = rest[width:]
	return id, rest[:n:n], rest[n:], true
}

// putObjects writes the objects that are not stored yet. It returns their index entries, which the
// caller adds once the write is durable.
func (s *Store) putObjects(
	tx *bbolt.Tx, all []pando.Object,
) (fresh map[pando.ObjectID]young, err error) {
	objects := tx.Bucket(objectsBucket)
	fresh = make(map[pando.ObjectID]young, len(all))
	var stream []byte
	for _, o := range all {
		if s.written != nil {
			s.written[o.ID] = true
		}
		if _, ok := fresh[o.ID]; ok || s.has(objects, o.ID) {
			continue
		}
		if len(stream) > updateBytesMax {
			value, err := inPlace(tx, o.Kind, o.Body)
			if err == nil {
				err = objects.Put(o.ID[:], value)
			}
			if err != nil {
				return nil, err
			}
			continue
		}
		y, err := s.youngOf(tx, o)
		if err != nil {
			return nil, err
		}
		stream = binary.AppendUvarint(append(stream, o.ID[:]...), uint64(len(y.value)))
		stream = append(stream, y.value...)
		fresh[o.ID] = y
	}
	if len(stream) == 0 {
		return nil, nil
	}
	generation, err := tx.CreateBucketIfNotExists(binary.BigEndian.AppendUint64(
		slices.Clone(generationName), s.recent.generation))
	if err != nil {
		return nil, err
	}
	return fresh, appendPieces(generation, stream)
}

func (s *Store) has(objects *bbolt.Bucket, id pando.ObjectID) bool {
	_, ok := s.recent.of[id]
	return ok || objects.Get(id[:]) != nil
}

// youngOf returns an object's entry for the current generation.
func (s *Store) youngOf(tx *bbolt.Tx, o pando.Object) (y young, err error) {
	y.generation = s.recent.generation
	if y.value, y.deltas, err = s.deltaOf(tx, o); y.value != nil || err != nil {
		return y, err
	}
	if len(o.Body) <= wholeBytesMax {
		y.value = append([]byte{letters[o.Kind]}, o.Body...)
		return y, nil
	}
	y.value, err = inPlace(tx, o.Kind, o.Body)
	return y, err
}

// deltaOf returns an object as a delta, or nil if it must be whole. During a prune each new object
// is whole, so that none needs a base that the prune deletes. Objects written earlier are made
// whole before the prune deletes anything.
func (s *Store) deltaOf(tx *bbolt.Tx, o pando.Object) (value []byte, deltas int, err error) {
	if o.Base.IsZero() || s.written != nil || !s.has(tx.Bucket(objectsBucket), o.Base) {
		return nil, 0, nil
	}
	if deltas = s.recent.of[o.Base].deltas + 1; deltas > deltasMax {
		return nil, 0, nil
	}
	base, _, err := s.read(tx, o.Base)
	if err != nil {
		return nil, 0, err
	}
	return delta(o, base.Body), deltas, nil
}
