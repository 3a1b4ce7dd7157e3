// Package deeds keeps the audit of one host in a file: a JSON object a line, one for each deed.
//
// It only appends. A full file becomes FILE.1, and the oldest file beyond Kept goes. It never reads
// a deed, so a damaged file costs no later line.
package deeds

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"pando.run/pando"
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
func (f *File) Add(d pando.Deed) error {
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
	for n := Kept - 1; n > 1; n-- {
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

func (f *File) name(n int) string { return fmt.Sprintf("%s.%d", f.path, n) }
