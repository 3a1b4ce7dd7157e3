// Package book keeps the book of a host's work in one file. It replaces the file at once, so a kill
// in between leaves the former book. It never reads the entries.
package book

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"pando.run/pando"
)

var _ pando.Books = File("")

// File is the path of a book.
type File string

// Load implements pando.Books.
func (f File) Load() ([]byte, error) {
	b, err := os.ReadFile(string(f))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the work of this host: %w", err)
	}
	return b, nil
}

// Save implements pando.Books.
func (f File) Save(b []byte) error {
	if err := f.save(b); err != nil {
		return fmt.Errorf("keep the work of this host: %w", err)
	}
	return nil
}

func (f File) save(b []byte) (err error) {
	next := string(f) + ".new"
	to, err := os.OpenFile(next, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = to.Write(b)
	if err = errors.Join(err, to.Sync(), to.Close()); err != nil {
		return err
	}
	if err := os.Rename(next, string(f)); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(string(f)))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
