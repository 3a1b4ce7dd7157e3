package logfile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// logBytesMax bounds one file of a log.
const logBytesMax = 10 << 20

// Writer is the log of a program's output, written by its shim.
type Writer struct {
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

// Copy writes all output until its end. A full disk loses lines, but never stops the program.
func (l *Writer) Copy(r io.ReadCloser) {
	defer r.Close()
	b := make([]byte, 32<<10)
	for {
		n, err := r.Read(b)
		if n > 0 {
			l.Write(b[:n])
		}
		if err != nil {
			return
		}
	}
}

// mark records the time of the write at an offset. A short write of a full disk would shift all
// later marks, so it is undone.
func (l *Writer) mark(offset int64, at time.Time) {
	if l.times == nil || at.Sub(l.marked) < markEvery {
		return
	}
	if n, err := l.times.Write(appendMark(nil, offset, at)); err != nil || n != markBytes {
		_ = l.times.Truncate(int64(l.marks) * markBytes)
		return
	}
	l.marks, l.marked = l.marks+1, at
}

func (l *Writer) open() error {
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
func (l *Writer) openTimes() {
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

func (l *Writer) rotate() {
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

// Write appends output, and rotates a file that is full of bytes or times. It never fails: a full disk
// loses lines.
func (l *Writer) Write(b []byte) {
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

// Open opens the log of an instance. A full disk is no reason not to start a program: the
// log then starts once there is room.
func Open(root *os.Root, dir string) (*Writer, error) {
	l := &Writer{root: root, dir: dir}
	if err := l.open(); err != nil && !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		return nil, err
	}
	return l, nil
}

// appendMark appends one mark.
func appendMark(b []byte, offset int64, at time.Time) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(offset))
	return binary.LittleEndian.AppendUint64(b, uint64(at.UnixNano()))
}

// logsKept is how many files of a log there are. Logs rotate: "log" is the newest, "log.1" the one
// before, and so on. "times" has the times of its lines.
const logsKept = 3
