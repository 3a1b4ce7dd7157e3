// Package logfile has the log of an instance's output. Its shim writes the files and rotates them, and
// the driver reads them as they grow.
package logfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"pando.run/pando"
)

// logLook is the time between two looks at a followed log.
const logLook = 100 * time.Millisecond

// endBytesMax is how far LastLines looks back in a file.
const endBytesMax = 256 << 10

// LastLines returns the end of a log, unchanged.
func LastLines(dir string, n int) []string {
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
