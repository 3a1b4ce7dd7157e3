package git

import (
	"bufio"
	"compress/zlib"
	"context"
	"crypto/sha1"
	"encoding/binary"
	"fmt"
	"io"

	"pando.run/pando"
)

// packKinds has the numbers of object kinds in a pack.
var packKinds = map[pando.ObjectKind]byte{pando.CommitObject: 1, pando.TreeObject: 2,
	pando.BlobObject: 3}

const packBufferBytes = 32 << 10

// writePack streams objects as a pack (git's pack-format, version 2), without deltas. A state has
// many small objects and chunks that never change, and every request gets a new pack.
func writePack(
	ctx context.Context, w io.Writer, objects pando.Objects, list []pando.ObjectID,
) error {
	sum := sha1.New()
	buf := bufio.NewWriterSize(w, packBufferBytes)
	out := io.MultiWriter(buf, sum)
	head := binary.BigEndian.AppendUint32(append([]byte("PACK"), 0, 0, 0, 2), uint32(len(list)))
	if _, err := out.Write(head); err != nil {
		return err
	}
	z, err := zlib.NewWriterLevel(out, zlib.BestSpeed)
	if err != nil {
		return err
	}
	for _, id := range list {
		if err := ctx.Err(); err != nil {
			return err
		}
		kind, body, err := objects.Object(id)
		if err != nil {
			return fmt.Errorf("pack object %s: %w", id, err)
		}
		if _, err := out.Write(packHead(kind, len(body))); err != nil {
			return err
		}
		z.Reset(out)
		if _, err := z.Write(body); err != nil {
			return err
		}
		if err := z.Close(); err != nil {
			return err
		}
	}
	if _, err := buf.Write(sum.Sum(nil)); err != nil {
		return err
	}
	return buf.Flush()
}

// packHead encodes an object's kind and size: 4 bits of the size in the first byte, 7 in each
// following one.
func packHead(kind pando.ObjectKind, size int) []byte {
	b := []byte{packKinds[kind]<<4 | byte(size&0xf)}
	for size >>= 4; size > 0; size >>= 7 {
		b[len(b)-1] |= 0x80
		b = append(b, byte(size&0x7f))
	}
	return b
}
