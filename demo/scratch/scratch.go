// Package scratch is the folder of a demo. The folder owns everything that the demo creates. A
// killed demo cannot clean up; the next demo removes its folder.
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

// Folder is a demo's folder. The demo locks it as long as it runs.
type Folder struct {
	Path string
	lock *os.File
}

// lockName is the file in a folder that its demo locks. The file has content once the lock is held.
const lockName = "lock"

// Make makes a folder with the given prefix.
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

// File returns the path of a file in the folder.
func (f *Folder) File(name string) string { return filepath.Join(f.Path, name) }

// Remove removes the folder. The caller has already removed everything else that the folder owns.
func (f *Folder) Remove() error {
	err := os.RemoveAll(f.Path)
	if f.lock != nil {
		err = errors.Join(err, f.lock.Close())
	}
	return err
}

// Sweep removes the folders of killed demos. It calls lower first, which removes everything else
// that the folder owns.
func Sweep(prefix string, lower func(path string) error) error {
	entries, err := os.ReadDir(os.TempDir())
	if err != nil {
		return fmt.Errorf("look for leftovers of killed demos: %w", err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), prefix) || !own(e) {
			continue
		}
		if err := sweep(filepath.Join(os.TempDir(), e.Name()), lower); err != nil {
			return fmt.Errorf("remove leftovers of a killed demo: %w", err)
		}
	}
	return nil
}

// own reports whether the entry is a folder of this user. Other users may put an entry with the
// same prefix there, for example a link to another folder.
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
	if errors.Is(err, os.ErrNotExist) { // another demo is just creating it
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return nil // its demo runs
	}
	// Its demo is about to take the lock.
	if text, err := io.ReadAll(lock); err != nil || len(text) == 0 {
		return err
	}
	fmt.Fprintln(os.Stderr, "pando-demo: removing leftovers of a killed demo:", path)
	if err := lower(path); err != nil {
		return err
	}
	return os.RemoveAll(path)
}
