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

// inPlace says what stands for an object among the others: its body, or where that lies from now on.
func inPlace(tx *bbolt.Tx, kind pando.ObjectKind, body []byte) ([]byte, error) {
	if len(body) <= inlineBytesMax {
		return append([]byte{letters[kind]}, body...), nil
	}
	pieces := tx.Bucket(piecesBucket)
	first := pieces.Sequence()
	value := binary.BigEndian.AppendUint64([]byte{letters[kind] | inPieces}, first+1)
	return binary.BigEndian.AppendUint64(value, uint64(len(body))), appendPieces(pieces, body)
}

// appendPieces writes a body behind all that a bucket has.
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

// place reads where the body of a value lies; ok is false for one that lies beside its name.
func place(value []byte) (first, bytes uint64, ok bool) {
	if len(value) != 17 || value[0]&inPieces == 0 {
		return 0, 0, false
	}
	return binary.BigEndian.Uint64(value[1:]), binary.BigEndian.Uint64(value[9:]), true
}

// bodyOf reads the body of a value that is whole.
func bodyOf(tx *bbolt.Tx, value []byte) ([]byte, error) {
	first, size, elsewhere := place(value)
	if !elsewhere {
		return slices.Clone(value[1:]), nil
	}
	body := make([]byte, 0, size)
	c := tx.Bucket(piecesBucket).Cursor()
	for k, v := c.Seek(binary.BigEndian.AppendUint64(nil, first)); k != nil && uint64(len(body)) < size; k, v = c.Next() {
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
