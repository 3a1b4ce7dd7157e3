package state

import (
	"bytes"
	"fmt"
	"strconv"

	"pando.run/pando"
)

// An append-log is a folder of three levels, a radix tree of chunks: "00/00/00", "00/00/01", … Its
// files in path order are the log. An append writes the last chunk and its three folders, at any
// length of the log.
const (
	chunkBytesMax = 16 << 10
	fanOut        = 256
	levels        = 3
	chunksMax     = fanOut * fanOut * fanOut
)

// position is a place in a log: a chunk, and bytes into it.
type position struct {
	chunk int
	bytes int
}

func chunkName(n, level int) string {
	return fmt.Sprintf("%02x", n>>(8*(levels-1-level))&0xff)
}

// endOf returns the end of a log. The zero id is the empty log.
func (w *work) endOf(log pando.ObjectID) (position, error) {
	var p position
	if log.IsZero() {
		return p, nil
	}
	id := log
	for range levels {
		t, err := w.folder(id)
		if err != nil {
			return p, err
		}
		if t == "" {
			return p, fmt.Errorf("%w: a log with an empty folder", pando.ErrInvalid)
		}
		last, err := t.last()
		if err != nil {
			return p, err
		}
		n, err := strconv.ParseUint(last.name, 16, 8)
		if err != nil {
			return p, fmt.Errorf("%w: a log with a chunk %q", pando.ErrInvalid, last.name)
		}
		p.chunk, id = p.chunk<<8|int(n), last.id
	}
	b, err := w.blob(id)
	p.bytes = len(b)
	return p, err
}

// chunk reads one chunk of a log.
func (w *work) chunk(log pando.ObjectID, n int) ([]byte, error) {
	id := log
	for level := range levels {
		e, err := w.child(id, chunkName(n, level))
		if err != nil {
			return nil, err
		}
		if e.id.IsZero() {
			return nil, fmt.Errorf("chunk %d of a log: %w", n, pando.ErrNotFound)
		}
		id = e.id
	}
	return w.blob(id)
}

// since reads a log from a position to its end.
func (w *work) since(log pando.ObjectID, from position) ([]byte, error) {
	end, err := w.endOf(log)
	if err != nil || log.IsZero() {
		return nil, err
	}
	var out bytes.Buffer
	for n := from.chunk; n <= end.chunk; n++ {
		b, err := w.chunk(log, n)
		if err != nil {
			return nil, err
		}
		if n == from.chunk {
			if from.bytes > len(b) {
				return nil, fmt.Errorf("%w: a log is shorter than its base", pando.ErrInvalid)
			}
			b = b[from.bytes:]
		}
		out.Write(b)
	}
	return out.Bytes(), nil
}

// append adds lines to the end of a log and returns the new log.
func (w *work) append(log pando.ObjectID, lines []byte) (pando.ObjectID, error) {
	if len(lines) == 0 {
		return log, nil
	}
	end, err := w.endOf(log)
	if err != nil {
		return log, err
	}
	if !log.IsZero() && end.bytes < chunkBytesMax {
		last, err := w.chunk(log, end.chunk)
		if err != nil {
			return log, err
		}
		lines = append(bytes.Clone(last), lines...)
	} else if !log.IsZero() {
		end.chunk++
	}
	fresh := map[int]pando.ObjectID{}
	first := end.chunk
	for n := first; len(lines) > 0; n++ {
		if n >= chunksMax {
			return log, fmt.Errorf("append to a log: %w", pando.ErrTooLarge)
		}
		size := min(len(lines), chunkBytesMax)
		fresh[n] = w.put(pando.BlobObject, lines[:size])
		lines = lines[size:]
	}
	return w.graft(log, fresh, first, 0, 0)
}

// graft puts chunks into one folder of a log. upper holds the higher digits of the folder's first
// chunk.
func (w *work) graft(
	folder pando.ObjectID, fresh map[int]pando.ObjectID, first, level, upper int,
) (pando.ObjectID, error) {
	t, err := w.folder(folder)
	if err != nil {
		return folder, err
	}
	rest := t
	var edits []entry
	span := 1 << (8 * (levels - 1 - level)) // chunks below one entry
	for digit := range fanOut {
		low := (upper<<8 | digit) * span
		if max(low, first) >= min(low+span, first+len(fresh)) {
			continue
		}
		name := fmt.Sprintf("%02x", digit)
		old, err := rest.seek(name)
		if err != nil {
			return folder, err
		}
		e := entry{name: name, tree: level < levels-1}
		if e.tree {
			id, err := w.graft(old.id, fresh, first, level+1, upper<<8|digit)
			if err != nil {
				return folder, err
			}
			e.id = id
		} else {
			e.id = fresh[low]
		}
		edits = replaced(edits, old, e)
	}
	body, splices, err := t.edit(edits)
	if err != nil {
		return folder, err
	}
	return w.derive(folder, body, splices), nil
}
