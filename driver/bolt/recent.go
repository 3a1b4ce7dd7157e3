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

// Names of objects are hashes. Written to its place among them at once, each object would take a page with it that nothing
// else of its update touches. It is therefore appended to a generation first, a bucket that has objects in the order of
// writing and whose index is in memory, and goes to its place later, together with much else: when the generation is large,
// or at a prune, if it is still needed then.
//
//	update ──► generation n ──┐
//	           generation … ──┴─ settle ──► objects, pieces
//
// A generation is a stream of entries, cut into pieces: id, length of the value as a uvarint, value.
const (
	recentBytesMax = 4 << 20 // of values, and what the index takes beside them
	recentEntry    = 64      // bytes that an entry of the index takes
	updateBytesMax = 1 << 20 // what one update writes beyond that is much by itself
	wholeBytesMax  = 4 << 10 // a larger body goes to its place at once
	settleTurns    = 16      // writes in which all that is older goes to its place: others wait behind each
)

// settleMin objects, at the least, go to their places in one write. Tests make it fewer.
var settleMin = 256

// generationName is followed by the number of the generation.
var generationName = []byte("recent ")

// recent is the index of what has not gone to its place yet. It is changed by the holder of the store's write lock only,
// which may therefore read it without its own.
type recent struct {
	sync.RWMutex
	of         map[pando.ObjectID]young
	bytes      int
	generation uint64 // the one that is written to
}

// young is one object: its value is as in its place, or a body of any length, or a delta.
type young struct {
	value      []byte
	generation uint64
	deltas     int // to a body that is whole
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

// older are the ids of what is older than the current generation, in order: those that stay, which is also whatever has
// pieces in its place already, and the others.
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

// drop removes what is older than the current generation from the file.
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

// forget removes what drop removes from the index.
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

// load reads the generations of a file.
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

// putObjects writes objects that are not there yet, and returns what the index gets once that is durable.
func (s *Store) putObjects(tx *bbolt.Tx, all []pando.Object) (fresh map[pando.ObjectID]young, err error) {
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
	generation, err := tx.CreateBucketIfNotExists(binary.BigEndian.AppendUint64(slices.Clone(generationName), s.recent.generation))
	if err != nil {
		return nil, err
	}
	return fresh, appendPieces(generation, stream)
}

func (s *Store) has(objects *bbolt.Bucket, id pando.ObjectID) bool {
	_, ok := s.recent.of[id]
	return ok || objects.Get(id[:]) != nil
}

// youngOf is what a generation gets of an object.
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

// deltaOf is an object as a delta, nil if it should be whole. While a prune is at work every object is, so that none needs
// another that the prune deletes; what was written before it begins is whole before it deletes anything.
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
