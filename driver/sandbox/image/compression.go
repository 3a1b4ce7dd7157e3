package image

import (
	"bufio"
	"compress/bzip2"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"pando.run/pando"
)

// compressed are the first bytes of compressed files. "?" is any byte: an archive without
// compression begins with the name of its first file.
var compressed = []struct {
	name, magic string
	open        func(*bufio.Reader) (io.ReadCloser, error) // nil: not read here
}{
	{"gzip", "\x1f\x8b", func(in *bufio.Reader) (io.ReadCloser, error) { return gzip.NewReader(in) }},
	{"zstd", "\x28\xb5\x2f\xfd", openZstd},
	{"bzip2", "BZh?1AY&SY", func(in *bufio.Reader) (io.ReadCloser, error) {
		return io.NopCloser(bzip2.NewReader(in)), nil
	}},
	{"xz", "\xfd7zXZ\x00", openXZ},
	{"lz4", "\x04\x22\x4d\x18", nil},
	{"lzip", "LZIP\x01", nil},
	{"compress", "\x1f\x9d", nil},
	{"zip", "PK\x03\x04", nil},
	{"7-Zip", "7z\xbc\xaf\x27\x1c", nil},
}

const magicBytesMax = 10

// decompress returns the archive in a blob. The first bytes tell the compression, not a media type.
func decompress(r io.Reader) (io.ReadCloser, error) {
	in := bufio.NewReaderSize(r, 64<<10)
	head, _ := in.Peek(magicBytesMax) // a shorter blob is an archive, or none
	for _, c := range compressed {
		switch {
		case !begins(head, c.magic):
		case c.open == nil:
			return nil, fmt.Errorf("%w: it is compressed by %s: compress it by gzip, zstd, xz or bzip2",
				pando.ErrInvalid, c.name)
		default:
			return c.open(in)
		}
	}
	return io.NopCloser(in), nil
}

// begins reports whether a file begins with the bytes of a compression.
func begins(head []byte, magic string) bool {
	if len(head) < len(magic) {
		return false
	}
	for n := range len(magic) {
		if magic[n] != '?' && magic[n] != head[n] {
			return false
		}
	}
	return true
}

// isCompressed reports whether a file is compressed.
func isCompressed(f *os.File) (bool, error) {
	head := make([]byte, magicBytesMax)
	n, err := f.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	for _, c := range compressed {
		if begins(head[:n], c.magic) {
			return true, nil
		}
	}
	return false, nil
}

func openZstd(in *bufio.Reader) (io.ReadCloser, error) {
	z, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1),
		zstd.WithDecoderMaxWindow(windowMax))
	if err != nil {
		return nil, err
	}
	return z.IOReadCloser(), nil
}

// openXZ refuses a file that asks for a large dictionary: the reader takes the memory for it.
func openXZ(in *bufio.Reader) (io.ReadCloser, error) {
	head, _ := in.Peek(64)
	if n := xzDictionary(head); n > windowMax {
		return nil, fmt.Errorf("%w: it needs a dictionary of %d MiB: compress it with at most %d MiB",
			pando.ErrTooLarge, n>>20, windowMax>>20)
	}
	x, err := xz.ReaderConfig{SingleStream: true}.NewReader(in)
	if err != nil {
		return nil, err
	}
	return io.NopCloser(x), nil
}

// xzDictionary returns the dictionary's size that the first block of an xz file asks for, or 0
// (https://tukaani.org/xz/xz-file-format.txt §3.1, §5.3.1).
func xzDictionary(head []byte) uint64 {
	const streamHeader, lzma2 = 12, 0x21
	if len(head) < streamHeader+2 {
		return 0
	}
	block := head[streamHeader+1:]
	flags, block := block[0], block[1:]
	for _, has := range []byte{0x40, 0x80} { // sizes, which are optional
		if flags&has != 0 {
			_, n := binary.Uvarint(block)
			block = block[max(n, 0):]
		}
	}
	for range int(flags&3) + 1 {
		id, n := binary.Uvarint(block)
		block = block[max(n, 0):]
		size, m := binary.Uvarint(block)
		block = block[max(m, 0):]
		if n <= 0 || m <= 0 || uint64(len(block)) < size {
			return 0
		}
		if id == lzma2 && size == 1 {
			if bits := block[0] & 0x3f; bits < 40 {
				return uint64(2|bits&1) << (bits/2 + 11)
			}
			return 1<<32 - 1
		}
		block = block[size:]
	}
	return 0
}

// plainArchive returns the path of an archive without compression: that of the file itself, or of a
// copy in the store, which remove deletes.
func (s *Store) plainArchive(ctx context.Context, path string) (plain string, remove func(), err error) {
	none := func() {}
	in, err := os.Open(path)
	if err != nil {
		return "", none, err
	}
	defer in.Close()
	if is, err := isCompressed(in); !is || err != nil {
		return path, none, err
	}
	r, err := decompress(in)
	if err != nil {
		return "", none, err
	}
	defer r.Close()
	f, err := os.CreateTemp(s.blobs(), ".new-*")
	if err != nil {
		return "", none, err
	}
	defer f.Close()
	remove = func() { _ = os.Remove(f.Name()) } // a sweep removes what stays
	if _, err = copyTo(ctx, s, f, r); err != nil {
		remove()
		if ctx.Err() != nil || errors.Is(err, pando.ErrTooLarge) || errors.Is(err, pando.ErrStoreFull) {
			return "", none, err
		}
		return "", none, fmt.Errorf("%w: its compression: %w", pando.ErrInvalid, err)
	}
	return f.Name(), remove, nil
}
