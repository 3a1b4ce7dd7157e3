package logfile

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"time"

	"pando.run/pando"
	"pando.run/pando/api/logs"
)

// queryBytesMax bounds the lines of one log that a query returns. The newest lines stay.
const queryBytesMax = 4 << 20

// Read reads the log of an instance in a folder: its last lines, and with Follow the lines after
// them.
func Read(
	ctx context.Context, clock pando.Clock, dir string, i pando.InstanceID, q pando.LogQuery,
) (pando.LogLines, error) {
	wanted, err := regexp.Compile(q.Match)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", pando.ErrInvalid, err)
	}
	f, err := os.Open(filepath.Join(dir, "log"))
	if err != nil {
		return nil, fmt.Errorf("log of %s: %w", i, pando.ErrNotFound)
	}
	r := &reading{ctx: ctx, instance: i, query: q, wanted: wanted}
	end := r.all(f, dir)
	if err := ctx.Err(); err != nil {
		f.Close()
		return nil, fmt.Errorf("log of %s: %w", i, err)
	}
	if !q.Follow {
		f.Close()
		return logs.Slice(r.kept), nil
	}
	if _, err := f.Seek(end, io.SeekStart); err != nil {
		f.Close()
		return nil, fmt.Errorf("log of %s: %w", i, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	t := &tail{ctx: ctx, cancel: cancel, clock: clock, path: filepath.Join(dir, "log"), file: f}
	return &followed{
		reading: r, tail: t, lines: bufio.NewReaderSize(t, logs.LineBytesMax),
	}, nil
}

// reading collects the lines of one log that a query wants. It stops with its caller: a search goes
// through whole files.
type reading struct {
	ctx      context.Context
	instance pando.InstanceID
	query    pando.LogQuery
	wanted   *regexp.Regexp
	kept     []pando.LogLine
	bytes    int64
}

// add keeps a line that the query wants, and drops the oldest lines beyond its bounds.
func (r *reading) add(at time.Time, text []byte) {
	if r.query.Lines <= 0 || at.Before(r.query.Since) || !r.wanted.Match(text) {
		return
	}
	l := pando.LogLine{At: at, Instance: r.instance, Text: string(text)}
	r.kept, r.bytes = append(r.kept, l), r.bytes+l.Weight()
	for len(r.kept) > r.query.Lines || r.bytes > int64(min(cmp.Or(r.query.Bytes, queryBytesMax), queryBytesMax)) {
		r.bytes -= r.kept[0].Weight()
		r.kept = r.kept[1:]
	}
}

// all reads the open log and the files before it. It returns the end of the last line that it has
// read: a program may be writing the next one.
func (r *reading) all(f *os.File, dir string) (end int64) {
	mine, err := f.Stat()
	if err != nil {
		return 0
	}
	for n := logsKept - 1; n > 0; n-- {
		old, err := os.Open(filepath.Join(dir, fmt.Sprintf("log.%d", n)))
		if err != nil {
			continue
		}
		info, err := old.Stat()
		if err == nil && !os.SameFile(info, mine) && (r.searches() || n == 1) {
			r.file(old, info, readMarks(filepath.Join(dir, fmt.Sprintf("times.%d", n))), true)
		}
		old.Close()
	}
	return r.file(f, mine, readMarks(filepath.Join(dir, "times")), !r.query.Follow)
}

// searches reports whether a line far from the end may be wanted.
func (r *reading) searches() bool { return r.query.Match != "" || !r.query.Since.IsZero() }

// file reads one file of a log up to its present size. partial takes a last line without an end.
func (r *reading) file(f *os.File, info fs.FileInfo, m marks, partial bool) (end int64) {
	size := info.Size()
	from := int64(0)
	switch {
	case !r.searches():
		from = max(0, size-endBytesMax)
	case !r.query.Since.IsZero():
		if info.ModTime().Before(r.query.Since) {
			return size
		}
		from = m.offsetOf(r.query.Since)
	}
	in := bufio.NewReaderSize(io.NewSectionReader(f, from, size-from), logs.LineBytesMax)
	skip := from > 0 && !r.startsLine(f, from)
	for at := from; ; {
		b, err := in.ReadSlice('\n')
		whole := err == nil || errors.Is(err, bufio.ErrBufferFull)
		if r.ctx.Err() != nil || !whole && (!partial || len(b) == 0) {
			return at
		}
		if !skip {
			r.add(m.at(at, info.ModTime()), bytes.TrimSuffix(b, []byte("\n")))
		}
		skip = false
		if at += int64(len(b)); !whole {
			return at
		}
	}
}

// startsLine reports whether a line begins at an offset.
func (r *reading) startsLine(f *os.File, at int64) bool {
	var b [1]byte
	_, err := f.ReadAt(b[:], at-1)
	return err == nil && b[0] == '\n'
}

// followed is a log with the lines that arrive after the query.
type followed struct {
	*reading
	tail  *tail
	lines *bufio.Reader
}

func (f *followed) Next() (pando.LogLine, error) {
	if len(f.kept) > 0 {
		l := f.kept[0]
		f.kept = f.kept[1:]
		return l, nil
	}
	for {
		b, err := f.lines.ReadSlice('\n')
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return pando.LogLine{}, io.EOF
		}
		b = bytes.TrimSuffix(b, []byte("\n"))
		if f.wanted.Match(b) {
			return pando.LogLine{At: f.tail.clock.Now(), Instance: f.instance, Text: string(b)}, nil
		}
	}
}

// Unread returns the memory of the lines before those that arrive.
func (f *followed) Unread() int64 { return f.bytes }

func (f *followed) Close() error { return f.tail.Close() }

// marks are the times of one file of a log: pairs of an offset and the time, in nanoseconds since
// 1970, of the write that began there.
type marks []byte

// readMarks reads the marks of a file. A log of an older build has none.
func readMarks(path string) marks {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	return b[:len(b)/markBytes*markBytes]
}

func (m marks) len() int { return len(m) / markBytes }

func (m marks) get(n int) (offset int64, at time.Time) {
	b := m[n*markBytes:]
	return int64(binary.LittleEndian.Uint64(b)),
		time.Unix(0, int64(binary.LittleEndian.Uint64(b[8:])))
}

// at returns the time of the write that holds an offset, to markEvery. without is the answer of a
// file without marks.
func (m marks) at(offset int64, without time.Time) time.Time {
	n := sort.Search(m.len(), func(n int) bool { o, _ := m.get(n); return o > offset })
	if n == 0 {
		return without
	}
	_, t := m.get(n - 1)
	return t
}

// offsetOf returns an offset before which every line is older than t.
func (m marks) offsetOf(t time.Time) int64 {
	n := sort.Search(m.len(), func(n int) bool { _, at := m.get(n); return !at.Before(t) })
	if n == m.len() {
		n--
	}
	if n < 0 {
		return 0
	}
	o, _ := m.get(n)
	return o
}

// markBytes is the size of a mark.
const markBytes = 16

const (
	marksMax  = 1 << 17                // per file: the log rotates when it is full of them
	markEvery = 100 * time.Millisecond // at most one mark in this time
)
