package bolt

import (
	"encoding/binary"
	"fmt"
	"slices"

	"go.etcd.io/bbolt"

	"pando.run/pando"
)

// A small object lies beside its name. Names are hashes, so every write lands on a page of its own, and the file writes a
// page anew with all that is on it. A larger body therefore lies elsewhere, in pieces of less than half a page that are
// numbered in the order of writing: what is written together is together, and no neighbour is written again.
const (
	inlineBytesMax = 256
	pieceBytesMax  = 1984 // two of them, with their heads and keys, are one page of 4 KiB
)

var (
	letters = map[pando.ObjectKind]byte{pando.BlobObject: 'b', pando.TreeObject: 't', pando.CommitObject: 'c'}
	kinds   = map[byte]pando.ObjectKind{'b': pando.BlobObject, 't': pando.TreeObject, 'c': pando.CommitObject}
)

// inPieces marks the letter of an object whose value is not its body but the number of its first piece and its length.
const inPieces = 0x80

// putObject writes an object that is not there yet.
func putObject(tx *bbolt.Tx, o pando.Object) error {
	objects := tx.Bucket(objectsBucket)
	if objects.Get(o.ID[:]) != nil {
		return nil
	}
	letter := letters[o.Kind]
	if len(o.Body) <= inlineBytesMax {
		return objects.Put(o.ID[:], append([]byte{letter}, o.Body...))
	}
	pieces := tx.Bucket(piecesBucket)
	pieces.FillPercent = 1 // keys only grow
	first := pieces.Sequence()
	for piece := range slices.Chunk(o.Body, pieceBytesMax) {
		n, err := pieces.NextSequence()
		if err != nil {
			return err
		}
		if err := pieces.Put(binary.BigEndian.AppendUint64(nil, n), piece); err != nil {
			return err
		}
	}
	value := binary.BigEndian.AppendUint64([]byte{letter | inPieces}, first+1)
	return objects.Put(o.ID[:], binary.BigEndian.AppendUint64(value, uint64(len(o.Body))))
}

// place reads where the body of a value lies; ok is false for one that lies beside its name.
func place(value []byte) (first, bytes uint64, ok bool) {
	if len(value) != 17 || value[0]&inPieces == 0 {
		return 0, 0, false
	}
	return binary.BigEndian.Uint64(value[1:]), binary.BigEndian.Uint64(value[9:]), true
}

// getObject reads an object; ok is false where there is none.
func getObject(tx *bbolt.Tx, id pando.ObjectID) (o pando.Object, ok bool, err error) {
	value := tx.Bucket(objectsBucket).Get(id[:])
	if len(value) == 0 {
		return o, false, nil
	}
	o = pando.Object{ID: id, Kind: kinds[value[0]&^inPieces]}
	first, size, elsewhere := place(value)
	if !elsewhere {
		o.Body = slices.Clone(value[1:])
		return o, true, nil
	}
	o.Body = make([]byte, 0, size)
	c := tx.Bucket(piecesBucket).Cursor()
	for k, v := c.Seek(binary.BigEndian.AppendUint64(nil, first)); k != nil && uint64(len(o.Body)) < size; k, v = c.Next() {
		o.Body = append(o.Body, v...)
	}
	if uint64(len(o.Body)) != size {
		return o, false, fmt.Errorf("object %s has %d bytes of %d: the file is damaged", id, len(o.Body), size)
	}
	return o, true, nil
}

// deleteObject removes an object and the pieces of its body.
func deleteObject(tx *bbolt.Tx, id pando.ObjectID) error {
	objects, pieces := tx.Bucket(objectsBucket), tx.Bucket(piecesBucket)
	first, size, elsewhere := place(objects.Get(id[:]))
	if elsewhere {
		for n := first; n < first+(size+pieceBytesMax-1)/pieceBytesMax; n++ {
			if err := pieces.Delete(binary.BigEndian.AppendUint64(nil, n)); err != nil {
				return err
			}
		}
	}
	return objects.Delete(id[:])
}
