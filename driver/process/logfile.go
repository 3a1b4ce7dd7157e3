package process

import (
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
)

const (
	logBytesMax = 10 << 20
	logFilesMax = 3 // the current one included
)

// logFile is an instance's log: the current file and those before it, .1 the youngest. It is reached through the folder that
// the driver opened, because the sandbox itself sees that folder read-only.
type logFile struct {
	mu   sync.Mutex
	root *os.Root
	name string
	file *os.File
	size int64
}

func openLogFile(root *os.Root, name string) (*logFile, error) {
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return nil, err
	}
	l := &logFile{root: root, name: name}
	return l, l.open()
}

func (l *logFile) open() error {
	f, err := l.root.OpenFile(l.name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o640)
	if err != nil {
		return err
	}
	if info, err := f.Stat(); err == nil {
		l.size = info.Size()
	}
	l.file = f
	return nil
}

// copy writes what r says until it ends. A log that cannot be written is lost; the program is never stopped by it.
func (l *logFile) copy(r *os.File) {
	defer r.Close()
	b := make([]byte, 16<<10)
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
	if l.size+int64(len(b)) > logBytesMax {
		l.rotate()
	}
	n, _ := l.file.Write(b)
	l.size += int64(n)
}

func (l *logFile) rotate() {
	for i := logFilesMax - 1; i > 0; i-- {
		_ = l.root.Rename(rotated(l.name, i-1), rotated(l.name, i)) // the oldest is replaced; a missing one is no matter
	}
	old := l.file
	if l.open() == nil {
		old.Close()
	}
}

// rotated names the i-th file before the current one.
func rotated(name string, i int) string {
	if i == 0 {
		return name
	}
	return name + "." + strconv.Itoa(i)
}

// tail returns the last n lines of a file, reading no more than its last 64 KiB.
func tail(path string, n int) []string {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	const window = 64 << 10
	if info, err := f.Stat(); err == nil && info.Size() > window {
		_, _ = f.Seek(-window, io.SeekEnd)
	}
	b, _ := io.ReadAll(f)
	return lastLines(b, n)
}
