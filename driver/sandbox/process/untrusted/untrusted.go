// Package untrusted reads and removes folders whose files a program made, such as a volume. Such a
// program may nest folders without end, name them as long as it likes, link them anywhere and change
// them meanwhile. So the package goes down by open folders, one name at a time. It follows no link,
// has a bound for the levels, and keeps few names in memory.
//
// It never trusts a path: a path of many parts takes the kernel long, and may be too long for it.
package untrusted

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// chunk is the number of names that are read at a time.
const chunk = 512

// File is a file below a folder.
type File struct {
	Dir  int    // the open folder that has it
	Name string // in Dir
	Path string // from the first folder
	unix.Stat_t
}

// IsDir reports whether the file is a folder.
func (f *File) IsDir() bool { return f.Mode&unix.S_IFMT == unix.S_IFDIR }

// ErrDone is an error with which a visit ends a walk early.
var ErrDone = errors.New("enough files were read")

// Walk visits every file below a folder, a folder before its files. deep reports that some folders
// have more than levels above them: their files are left out. Files that vanish meanwhile are as well.
func Walk(ctx context.Context, dir string, levels int, visit func(*File) error) (deep bool, err error) {
	fd, err := open(unix.AT_FDCWD, dir)
	if err != nil {
		return false, fmt.Errorf("read %s: %w", dir, err)
	}
	w := walk{ctx, levels, visit, false}
	err = w.folder(fd, "", 0)
	if errors.Is(err, ErrDone) {
		err = nil
	}
	return w.deep, err
}

// open opens a folder. Its last name is no link.
func open(at int, name string) (int, error) {
	return unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

type walk struct {
	ctx    context.Context
	levels int
	visit  func(*File) error
	deep   bool
}

// folder visits the files of an open folder, which it closes.
func (w *walk) folder(fd int, at string, level int) error {
	dir := os.NewFile(uintptr(fd), at)
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(chunk)
		if len(names) == 0 {
			if err == io.EOF || errors.Is(err, unix.ENOENT) { // or the folder itself is gone
				return nil
			}
			return err
		}
		for _, name := range names {
			if err := w.file(fd, name, path.Join(at, name), level); err != nil {
				return err
			}
		}
	}
}

// file visits one file, and the files below it.
func (w *walk) file(dir int, name, at string, level int) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	f := &File{Dir: dir, Name: name, Path: at}
	if err := unix.Fstatat(dir, name, &f.Stat_t, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return unlessGone(err)
	}
	if err := w.visit(f); err != nil || !f.IsDir() {
		return err
	}
	if level >= w.levels {
		w.deep = true
		return nil
	}
	below, err := open(dir, name)
	if err != nil {
		return unlessGone(err)
	}
	return w.folder(below, at, level+1)
}

// unlessGone returns nil for the error of a file that has vanished or was replaced.
func unlessGone(err error) error {
	if err == unix.ENOENT || err == unix.ENOTDIR || err == unix.ELOOP {
		return nil
	}
	return err
}
