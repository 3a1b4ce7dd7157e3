package bolt

import (
	"encoding/binary"
	"fmt"
	"slices"

	"go.etcd.io/bbolt"

	"pando.run/pando"
)

// A small object is stored beside its id. Ids are hashes, so each write lands on a different page,
// and the file rewrites that page in full. A larger body is therefore stored elsewhere, in pieces
// of less than half a page, numbered in the order of writing. Bodies written together then lie
// together, and no neighbour is rewritten.
const (
	inlineBytesMax = 256
	pieceBytesMax  = 1984 // two pieces with their heads and keys fill a page of 4 KiB
)

var (
	letters = map[pando.ObjectKind]byte{
		pando.BlobObject: 'b', pando.TreeObject: 't', pando.CommitObject: 'c',
	}
	kinds = map[byte]pando.ObjectKind{
		'b': pando.BlobObject, 't': pando.TreeObject, 'c': pando.CommitObject,
	}
)

// inPieces is set in the letter of a value that has the number of its first piece and its length
// instead of a body.
const inPieces = 0x80

// inPlace returns an object's value for the object bucket: the body, or the location to which
// inPlace has written it.
func inPlace(tx *bbolt.Tx, kind pando.ObjectKind, body []byte) ([]byte, error) {
	if len(body) <= inlineBytesMax {
		return append([]byte{letters[kind]}, body...), nil
	}
	pieces := tx.Bucket(piecesBucket)
	first := pieces.Sequence()
	value := binary.BigEndian.AppendUint64([]byte{letters[kind] | inPieces}, first+1)
	return binary.BigEndian.AppendUint64(value, uint64(len(body))), appendPieces(pieces, body)
}

// appendPieces appends a body to a bucket, cut into pieces.
func appendPieces(to *bbolt.Bucket, body []byte) error {
	to.FillPercent = 1 // keys only grow
	for piece := range slices.Chunk(body, pieceBytesMax) {
		n, err := to.NextSequence()
		if err != nil {
			return err
		}
		if err := to.Put(binary.BigEndian.AppendUint64(nil, n), piece); err != nil {
			return err
		}
	}
	return nil
}

// place returns the location of a value's body; ok is false if the value has the body itself.
func place(value []byte) (first, bytes uint64, ok bool) {
	if len(value) != 17 || value[0]&inPieces == 0 {
		return 0, 0, false
	}
	return binary.BigEndian.Uint64(value[1:]), binary.BigEndian.Uint64(value[9:]), true
}

// bodyOf returns the body of a whole value.
func bodyOf(tx *bbolt.Tx, value []byte) ([]byte, error) {
	first, size, elsewhere := place(value)
	if !elsewhere {
		return slices.Clone(value[1:]), nil
	}
	body := make([]byte, 0, size)
	c := tx.Bucket(piecesBucket).Cursor()
	for k, v := c.Seek(binary.BigEndian.AppendUint64(nil, first)); k != nil &&
		uint64(len(body)) < size; k, v = c.Next() {
		body = append(body, v...)
	}
	if uint64(len(body)) != size {
		return nil, fmt.Errorf("there are %d bytes of %d: %w", len(body), size, errDamaged)
	}
	return body, nil
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
