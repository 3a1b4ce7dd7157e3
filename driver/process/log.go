package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// Logs rotate: "log" is the newest, "log.1" the one before, and so on. "times" has the times of its
// lines.
const (
	logBytesMax = 10 << 20
	logsKept    = 3
	logLook     = 100 * time.Millisecond // between two looks at a followed log
)

// logFile is the log of a program's output, written by its shim.
type logFile struct {
	mu   sync.Mutex
	root *os.Root // opened before the sandbox got its own view of files
	dir  string   // below root
	file *os.File
	size int64
	// times has the times of writes, as marks. It is nil if the disk had no room for it.
	times  *os.File
	marks  int
	marked time.Time // the newest mark
}

// openLogFile opens the log of an instance. A full disk is no reason not to start a program: the
// log then starts once there is room.
func openLogFile(root *os.Root, dir string) (*logFile, error) {
	l := &logFile{root: root, dir: dir}
	if err := l.open(); err != nil && !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		return nil, err
	}
	return l, nil
}

func (l *logFile) open() error {
	if err := l.root.MkdirAll(l.dir, 0o750); err != nil {
		return fmt.Errorf("make a folder for the log: %w", err)
	}
	f, err := l.root.OpenFile(filepath.Join(l.dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o640)
	if err != nil {
		return fmt.Errorf("open the log: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	l.file, l.size = f, info.Size()
	l.openTimes()
	return nil
}

// openTimes opens the file with the times of the log. Without it lines have the time of their file.
func (l *logFile) openTimes() {
	l.marks, l.marked = 0, time.Time{}
	path := filepath.Join(l.dir, "times")
	f, err := l.root.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o640)
	if err != nil {
		l.times = nil
		return
	}
	if info, err := f.Stat(); err == nil {
		l.marks = int(info.Size() / markBytes)
	}
	l.times = f
}

// mark records the time of the write at an offset. A short write of a full disk would shift all
// later marks, so it is undone.
func (l *logFile) mark(offset int64, at time.Time) {
	if l.times == nil || at.Sub(l.marked) < markEvery {
		return
	}
	if n, err := l.times.Write(appendMark(nil, offset, at)); err != nil || n != markBytes {
		_ = l.times.Truncate(int64(l.marks) * markBytes)
		return
	}
	l.marks, l.marked = l.marks+1, at
}

// copy writes all output until its end. A full disk loses lines, but never stops the program.
func (l *logFile) copy(r io.ReadCloser) {
	defer r.Close()
	b := make([]byte, 32<<10)
	for {
		n, err := r.Read(b)
		if n > 0 {
			l.write(b[:n])
		}
		if err != nil {
			return
		}
	}
}

func (l *logFile) write(b []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.file == nil:
		_ = l.open()
	case l.size+int64(len(b)) > logBytesMax, l.marks >= marksMax:
		l.rotate()
	}
	if l.file != nil {
		n, _ := l.file.Write(b)
		if info, err := l.file.Stat(); err == nil {
			l.mark(l.size, info.ModTime())
		}
		l.size += int64(n)
	}
}

func (l *logFile) rotate() {
	l.file.Close()
	l.file = nil
	if l.times != nil {
		l.times.Close()
	}
	for n := logsKept - 1; n > 0; n-- {
		for _, name := range []string{"times", "log"} {
			from := filepath.Join(l.dir, name)
			if n > 1 {
				from = fmt.Sprintf("%s.%d", from, n-1)
			}
			to := filepath.Join(l.dir, fmt.Sprintf("%s.%d", name, n))
			if l.root.Rename(from, to) != nil {
				_ = l.root.Remove(to) // it belongs to an older file
			}
		}
	}
	_ = l.open()
}

// lineBytesMax is the kept length of a line of evidence: a record in the store is small.
const lineBytesMax = 400

// evidence makes a line fit for a record and for a terminal: short, and without control characters.
func evidence(line string) string {
	cut := len(line) > lineBytesMax
	if cut {
		line = line[:lineBytesMax]
	}
	line = strings.Map(func(r rune) rune {
		if r == '\t' || unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, strings.ToValidUTF8(line, string(unicode.ReplacementChar)))
	if cut {
		line += "…"
	}
	return line
}

// endBytesMax is how far lastLines looks back in a file.
const endBytesMax = 256 << 10

// lastLines returns the end of a log, unchanged.
func lastLines(dir string, n int) []string {
	f, err := os.Open(filepath.Join(dir, "log"))
	if err != nil {
		return nil
	}
	defer f.Close()
	lines, _ := endOf(f, dir, n)
	return lines
}

// endOf returns the last lines of an open log and its size at that time. It also reads the file
// before it if the log has only just begun.
func endOf(f *os.File, dir string, n int) (lines []string, size int64) {
	b, size := readEnd(f)
	if bytes.Count(b, []byte("\n")) < n {
		if old, err := os.Open(filepath.Join(dir, "log.1")); err == nil {
			before, _ := readEnd(old)
			b = append(before, b...)
			old.Close()
		}
	}
	text := strings.TrimRight(string(b), "\n")
	if text == "" || n <= 0 {
		return nil, size
	}
	lines = strings.Split(text, "\n")
	return lines[max(0, len(lines)-n):], size
}

func readEnd(f *os.File) (b []byte, size int64) {
	info, err := f.Stat()
	if err != nil {
		return nil, 0
	}
	size = info.Size()
	from := max(0, size-endBytesMax)
	b, _ = io.ReadAll(io.NewSectionReader(f, from, size-from))
	return b, size
}

// tail reads a log as it grows, across rotations.
type tail struct {
	ctx    context.Context
	cancel context.CancelFunc
	clock  pando.Clock
	path   string
	file   *os.File
	// next follows file. Read finishes file first, because it grew until its rotation.
	next *os.File
}

func (t *tail) Read(b []byte) (int, error) {
	for {
		n, err := t.file.Read(b)
		switch {
		case n > 0:
			return n, nil
		case err != nil && !errors.Is(err, io.EOF):
			return 0, err
		case t.next != nil:
			t.file.Close()
			t.file, t.next = t.next, nil
			continue
		}
		if t.next = t.follower(); t.next != nil {
			continue
		}
		if pando.Sleep(t.ctx, t.clock, logLook) != nil {
			return 0, io.EOF
		}
	}
}

// follower opens the file after the current one, once the log has rotated: the next newer file. It
// opens the oldest file if the current one is already gone.
func (t *tail) follower() *os.File {
	mine, err := t.file.Stat()
	if err != nil {
		return nil
	}
	path := t.path
	for n := range logsKept {
		at := t.path
		if n > 0 {
			at = fmt.Sprintf("%s.%d", t.path, n)
		}
		info, err := os.Stat(at)
		if err != nil {
			break
		}
		if os.SameFile(mine, info) {
			if n == 0 {
				return nil
			}
			break
		}
		path = at
	}
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	return f
}

func (t *tail) Close() error {
	t.cancel()
	return nil
}
