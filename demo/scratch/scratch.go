// Package scratch is the folder of a demo, which owns whatever is made with it. A demo that is killed cannot take that away: the
// next one does.
package scratch

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Folder is held by a lock for as long as its demo lives.
type Folder struct {
	Path string
	lock *os.File
}

// lockName is the file in a folder that its demo holds locked, and in which something stands once it does.
const lockName = "lock"

// Make makes a folder whose name begins so.
func Make(prefix string) (_ *Folder, err error) {
	f := &Folder{}
	if f.Path, err = os.MkdirTemp("", prefix); err != nil {
		return nil, fmt.Errorf("make the demo's folder: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("hold the demo's folder: %w", err), f.Remove())
		}
	}()
	if f.lock, err = os.Create(filepath.Join(f.Path, lockName)); err != nil {
		return nil, err
	}
	if err = unix.Flock(int(f.lock.Fd()), unix.LOCK_EX); err != nil {
		return nil, err
	}
	_, err = fmt.Fprintln(f.lock, os.Getpid())
	return f, err
}

// File is the path of a file in the folder.
func (f *Folder) File(name string) string { return filepath.Join(f.Path, name) }

// Remove removes the folder; whatever was made with it is gone already.
func (f *Folder) Remove() error {
	err := os.RemoveAll(f.Path)
	if f.lock != nil {
		err = errors.Join(err, f.lock.Close())
	}
	return err
}

// Sweep removes the folders of demos that were killed, after `lower` has taken away what was made with each.
func Sweep(prefix string, lower func(path string) error) error {
	entries, err := os.ReadDir(os.TempDir())
	if err != nil {
		return fmt.Errorf("look for what killed demos have left: %w", err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), prefix) || !own(e) {
			continue
		}
		if err := sweep(filepath.Join(os.TempDir(), e.Name()), lower); err != nil {
			return fmt.Errorf("remove what a killed demo has left: %w", err)
		}
	}
	return nil
}

// own says whether it is a folder of this user: anybody may put something of that name beside it, a link to another folder too.
func own(e fs.DirEntry) bool {
	info, err := e.Info()
	if err != nil || !info.IsDir() {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid()
}

func sweep(path string, lower func(path string) error) error {
	lock, err := os.Open(filepath.Join(path, lockName))
	if errors.Is(err, os.ErrNotExist) { // it is about to be made
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return nil // its demo lives
	}
	if text, err := io.ReadAll(lock); err != nil || len(text) == 0 { // its demo is about to take the lock
		return err
	}
	fmt.Fprintln(os.Stderr, "pando-demo: removing what a killed demo has left:", path)
	if err := lower(path); err != nil {
		return err
	}
	return os.RemoveAll(path)
}
