package volume

import (
	"archive/tar"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// A file with holes may seem to have any size. So an archive has only its data: pieces, each with its
// offset and its length before its bytes. A record of the entry has the size of the file.

// sparseRecord is the name of that record.
const sparseRecord = "PANDO.sparse"

// holesLeast is the size of the holes from which on a file is stored without them.
const holesLeast = 1 << 20

// pieceHead is the length of the numbers before a piece: offset and length, big endian.
const pieceHead = 16

// isSparse reports whether a file has large holes.
func isSparse(f *os.File) bool {
	var st unix.Stat_t
	return unix.Fstat(int(f.Fd()), &st) == nil && st.Size-st.Blocks*512 >= holesLeast
}

// nextPiece returns the first data from an offset on. ok is false after the last. A file whose data
// cannot be found has an error, or it would be archived as a hole.
func nextPiece(f *os.File, from, size int64) (start, end int64, ok bool, err error) {
	start, err = unix.Seek(int(f.Fd()), from, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) || err == nil && start >= size { // the rest is a hole
		return 0, 0, false, nil
	}
	if err == nil {
		end, err = unix.Seek(int(f.Fd()), start, unix.SEEK_HOLE)
	}
	if errors.Is(err, unix.ENXIO) || err == nil && end <= start { // cut meanwhile
		return 0, 0, false, nil
	}
	if err != nil {
		return 0, 0, false, fmt.Errorf("find the data of %s: %w", f.Name(), err)
	}
	return start, min(end, size), true, nil
}

// archiveSparse writes a file without its holes. Its entry has the length that the pieces have at
// first; a program may write meanwhile.
func archiveSparse(out *tar.Writer, f *os.File, name string) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	h, err := tar.FileInfoHeader(st, "")
	if err != nil {
		return err
	}
	size := h.Size
	h.Name, h.Uname, h.Gname, h.Format, h.Size = name, "", "", tar.FormatPAX, 0
	h.PAXRecords = map[string]string{sparseRecord: strconv.FormatInt(size, 10)}
	for at := int64(0); ; {
		start, end, ok, err := nextPiece(f, at, size)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		h.Size, at = h.Size+pieceHead+end-start, end
	}
	if err := out.WriteHeader(h); err != nil {
		return err
	}
	return writePieces(out, f, size, h.Size)
}

// writePieces writes so many bytes of pieces of a file. Pieces that have appeared since the header was
// written are cut, and zeros stand for those that are gone: a piece without a length ends the list.
func writePieces(out io.Writer, f *os.File, size, left int64) error {
	for at := int64(0); left >= pieceHead; {
		start, end, ok, err := nextPiece(f, at, size)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		n := min(end-start, left-pieceHead)
		if n == 0 {
			break
		}
		var head [pieceHead]byte
		binary.BigEndian.PutUint64(head[:8], uint64(start))
		binary.BigEndian.PutUint64(head[8:], uint64(n))
		if _, err := out.Write(head[:]); err != nil {
			return err
		}
		if err := copyOrZeros(out, io.NewSectionReader(f, start, n), n); err != nil {
			return err
		}
		at, left = end, left-pieceHead-n
	}
	_, err := io.CopyN(out, zeros{}, left)
	return err
}

// copyOrZeros copies so many bytes, and writes zeros for those that are gone.
func copyOrZeros(out io.Writer, in io.Reader, n int64) error {
	done, err := io.CopyN(out, in, n)
	if errors.Is(err, io.EOF) {
		_, err = io.CopyN(out, zeros{}, n-done)
	}
	return err
}

// zeros is an endless source of zeros.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// restoreSparse brings the pieces of a file back. size is the record of its entry.
func restoreSparse(f *os.File, size string, in io.Reader) error {
	most, err := strconv.ParseInt(size, 10, 64)
	if err != nil || most < 0 {
		return fmt.Errorf("%w: a file of %q bytes", pando.ErrInvalid, size)
	}
	if err := f.Truncate(most); err != nil {
		return err
	}
	for {
		var head [pieceHead]byte
		_, err := io.ReadFull(in, head[:])
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil // or fewer zeros than a head has
		}
		if err != nil {
			return err
		}
		at, n := binary.BigEndian.Uint64(head[:8]), binary.BigEndian.Uint64(head[8:])
		if n == 0 {
			return nil
		}
		if at > uint64(most) || n > uint64(most)-at {
			return fmt.Errorf("%w: %d bytes at %d of a file of %d", pando.ErrInvalid, n, at, most)
		}
		if _, err := io.CopyN(io.NewOffsetWriter(f, int64(at)), in, int64(n)); err != nil {
			return err
		}
	}
}
