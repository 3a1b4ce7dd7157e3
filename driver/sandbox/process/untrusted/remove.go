package untrusted

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// levelsOpen bounds the folders that a removal has open. A folder below them moves to the top first.
const levelsOpen = 64

// Remove removes a folder with all files below it. A folder that is not there is no error.
func Remove(dir string) error {
	in, err := open(unix.AT_FDCWD, filepath.Dir(dir))
	name := filepath.Base(dir)
	if err == unix.ENOENT {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	defer unix.Close(in)
	top, err := open(in, name)
	if err == unix.ENOENT {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	defer unix.Close(top)
	r := &removal{top: top}
	if err := r.empty(top, 0); err != nil {
		return fmt.Errorf("remove the files of %s: %w", dir, err)
	}
	if err := unix.Unlinkat(in, name, unix.AT_REMOVEDIR); err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	return nil
}

// removal is one run of Remove.
type removal struct {
	top   int // the first folder
	moved int // folders that moved there
}

// empty removes the files of an open folder.
func (r *removal) empty(fd, level int) error {
	for {
		names, err := first(fd)
		if err != nil || len(names) == 0 {
			return err
		}
		for _, name := range names {
			if err := r.file(fd, name, level); err != nil {
				return err
			}
		}
	}
}

// first returns the first names of a folder.
func first(fd int) ([]string, error) {
	again, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	dir := os.NewFile(uintptr(again), ".")
	defer dir.Close()
	names, err := dir.Readdirnames(chunk)
	if err == io.EOF {
		err = nil
	}
	return names, err
}

// file removes one file of an open folder, and the files below it.
func (r *removal) file(dir int, name string, level int) error {
	err := unix.Unlinkat(dir, name, 0)
	if err == nil || err == unix.ENOENT {
		return nil
	}
	if err != unix.EISDIR {
		return err
	}
	if level >= levelsOpen {
		return r.move(dir, name)
	}
	below, err := open(dir, name)
	if err != nil {
		return unlessGone(err)
	}
	err = r.empty(below, level+1)
	unix.Close(below)
	if err == nil {
		err = unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
	}
	return unlessGone(err)
}

// move moves a folder to the top, under a name that is free there. The loop over the top removes it.
func (r *removal) move(dir int, name string) error {
	for {
		r.moved++
		err := unix.Renameat2(dir, name, r.top, ".deep-"+strconv.Itoa(r.moved), unix.RENAME_NOREPLACE)
		if err != unix.EEXIST {
			return unlessGone(err)
		}
	}
}
