// Package deeds keeps the audit of one host in a file: a JSON object a line, one for each deed.
//
// It only appends. A full file becomes FILE.1, and so on. The last of Kept files takes what leaves the one
// before it, and loses the oldest lines of the payer with the most. So a tenant that floods the audit
// pushes out its own lines. A damaged line is nobody's, and costs no other line.
package deeds

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"pando.run/pando/access"
	"pando.run/pando/access/share"
	"pando.run/pando/world"
)

// The bounds of the files of a host.
const (
	BytesMax = 10 << 20 // of one file
	Kept     = 5        // files, with the newest
)

// File is the audit of one host. Its methods may be called from any goroutine.
type File struct {
	mu   sync.Mutex
	path string
	most int64
}

// Open returns the audit at a path. The first deed creates the file.
func Open(path string) *File { return &File{path: path, most: BytesMax} }

// Add appends a deed. Once it returns, the line survives a loss of power.
func (f *File) Add(d access.Deed) error {
	line, err := json.Marshal(d)
	if err != nil {
		return fmt.Errorf("a deed for %s: %w", f.path, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.rotate(int64(len(line)) + 1); err != nil {
		return err
	}
	// The file is opened for each line: an operator or logrotate may move it.
	to, err := os.OpenFile(f.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return fmt.Errorf("append to the audit: %w", err)
	}
	_, err = to.Write(append(line, '\n'))
	if err = errors.Join(err, to.Sync(), to.Close()); err != nil {
		return fmt.Errorf("append to the audit %s: %w; make room on its disk", f.path, err)
	}
	return nil
}

// rotate begins a new file if this one has no room for more bytes.
func (f *File) rotate(more int64) error {
	st, err := os.Stat(f.path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && st.Size()+more <= f.most {
		return nil
	}
	if err != nil {
		return fmt.Errorf("the audit: %w", err)
	}
	if err := f.fold(); err != nil {
		return fmt.Errorf("rotate the audit: %w", err)
	}
	for n := Kept - 2; n > 1; n-- {
		err := os.Rename(f.name(n-1), f.name(n))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("rotate the audit: %w", err)
		}
	}
	if err := os.Rename(f.path, f.name(1)); err != nil {
		return fmt.Errorf("rotate the audit: %w", err)
	}
	return nil
}

// fold adds the file before the last one to the last one, and bounds that: the oldest lines of the payer
// with the most go.
func (f *File) fold() error {
	var lines [][]byte
	var pieces []share.Piece[string]
	for _, n := range []int{Kept - 1, Kept - 2} {
		text, err := os.ReadFile(f.name(n))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for line := range bytes.Lines(text) {
			var d access.Deed
			_ = json.Unmarshal(line, &d)
			lines = append(lines, line)
			pieces = append(pieces, share.Piece[string]{Owner: world.Payer(d), Size: int64(len(line))})
		}
	}
	for n := range share.Trim(pieces, f.most) {
		lines[n] = nil
	}
	if len(lines) == 0 {
		return nil
	}
	next := f.path + ".next"
	err := os.WriteFile(next, bytes.Join(lines, nil), 0o640)
	if err == nil {
		err = os.Rename(next, f.name(Kept-1))
	}
	if err == nil {
		err = os.Remove(f.name(Kept - 2))
	}
	return ignoreGone(err)
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (f *File) name(n int) string { return fmt.Sprintf("%s.%d", f.path, n) }
