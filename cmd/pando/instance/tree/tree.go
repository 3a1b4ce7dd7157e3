// Package tree reads and writes a file or a folder as a tar stream.
//
// It trusts no stream: no name and no link leads out of the copy, and no device is made.
package tree

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"pando.run/pando"
)

// Base returns the last element of a local path: the name of its copy in a folder.
func Base(local string) string {
	full, err := filepath.Abs(local)
	if err != nil || full == "/" {
		return "root"
	}
	return filepath.Base(full)
}

// EntriesMax bounds the entries of a stream that is read.
const EntriesMax = 1_000_000

// reader writes the entries of a stream to this machine.
type reader struct {
	base string   // the name that all entries have or begin with
	to   string   // the path of the copy
	over bool     // replace files that are there
	root *os.Root // the folder of the copy, once it is there; nil: the copy is one file
	left []string
}

// Place returns where Read puts a file or folder with the name base: a folder that is there takes
// the copy inside.
func Place(base, to string) string {
	if i, err := os.Stat(to); err == nil && i.IsDir() && base != "." {
		return filepath.Join(to, base)
	}
	return to
}

// Read copies the stream of one file or folder with the name base to a local path. A folder that is
// there takes the copy inside. Without over, a file that is there is an error. left names the
// entries that were left out, with the reason.
func Read(from io.Reader, base, to string, over bool) (left []string, err error) {
	r := &reader{base: base, to: Place(base, to), over: over}
	defer func() {
		if r.root != nil {
			err = errors.Join(err, r.root.Close())
		}
	}()
	t := tar.NewReader(from)
	for n := 0; ; n++ {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			// The end of a tar has padding. Its sender waits until all of it is read.
			if _, err = io.Copy(io.Discard, from); err == nil && n == 0 {
				err = fmt.Errorf("%w: nothing was copied", pando.ErrNotFound)
			}
			return r.left, err
		}
		if err == nil && n == EntriesMax {
			err = fmt.Errorf("%w: more than %d entries; copy a part", pando.ErrTooLarge, EntriesMax)
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
			return r.left, fmt.Errorf("read the copy: %w", err)
		}
		if err := r.entry(h, t); err != nil {
			return r.left, err
		}
	}
}

// entry writes one entry.
func (r *reader) entry(h *tar.Header, content io.Reader) error {
	name, ok := r.inside(h.Name)
	if !ok {
		r.skip(h, "its name leads out of the copy")
		return nil
	}
	if name == "." {
		return r.first(h, content)
	}
	if r.root == nil {
		r.skip(h, "the copy is one file")
		return nil
	}
	local := filepath.FromSlash(name)
	if h.Typeflag != tar.TypeDir {
		if err := r.clear(r.root, local); err != nil {
			return err
		}
	}
	switch h.Typeflag {
	case tar.TypeReg:
		return write(r.root, local, h, content)
	case tar.TypeDir:
		return r.folder(local, h)
	case tar.TypeSymlink:
		if !stays(name, h.Linkname) {
			r.skip(h, fmt.Sprintf("it links to %q, out of the copy", h.Linkname))
			return nil
		}
		return r.root.Symlink(h.Linkname, local)
	case tar.TypeLink:
		other, ok := r.inside(h.Linkname)
		if !ok || other == "." {
			r.skip(h, fmt.Sprintf("it is %q, out of the copy", h.Linkname))
			return nil
		}
		return r.root.Link(filepath.FromSlash(other), local)
	}
	r.skip(h, "it is a device or a pipe")
	return nil
}

// inside returns the name of an entry below the copy, "." for the copy itself.
func (r *reader) inside(name string) (string, bool) {
	name = path.Clean(name)
	rest := name
	if base := path.Clean(r.base); base != "." && name != base {
		var ok bool
		if rest, ok = strings.CutPrefix(name, base+"/"); !ok {
			return "", false
		}
	} else if name == base {
		rest = "."
	}
	return rest, filepath.IsLocal(filepath.FromSlash(rest))
}

// first writes the copy itself: a file, or the folder of all other entries.
func (r *reader) first(h *tar.Header, content io.Reader) (err error) {
	switch h.Typeflag {
	case tar.TypeDir:
		if err := os.Mkdir(r.to, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make the copy's folder: %w", err)
		}
		if r.root == nil {
			r.root, err = os.OpenRoot(r.to)
		}
		return err
	case tar.TypeReg:
		parent, err := os.OpenRoot(filepath.Dir(r.to))
		if err != nil {
			return fmt.Errorf("open the copy's folder: %w", err)
		}
		defer parent.Close()
		name := filepath.Base(r.to)
		if err := r.clear(parent, name); err != nil {
			return err
		}
		return write(parent, name, h, content)
	}
	return fmt.Errorf("%w: it is a link, a device or a pipe: name the file itself", pando.ErrInvalid)
}

// clear removes a file or a link that is in the way, if files may be replaced. A folder with files
// stays, and is an error.
func (r *reader) clear(root *os.Root, local string) error {
	if _, err := root.Lstat(local); err == nil && !r.over {
		return Exists(filepath.Join(root.Name(), local))
	}
	err := root.Remove(local)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("replace %q: %w", local, err)
}

// Exists returns the error of a copy to a path that is taken.
func Exists(path string) error {
	return fmt.Errorf("%w: %s is there; name another path, or add --force to write over it",
		pando.ErrExists, path)
}

// folder makes a folder. A link or a file in its place is replaced.
func (r *reader) folder(local string, h *tar.Header) error {
	i, err := r.root.Lstat(local)
	if err == nil && i.IsDir() {
		return nil
	}
	if err == nil {
		if err := r.clear(r.root, local); err != nil {
			return err
		}
	}
	// Its owner may write, so that the entries below find room.
	return r.root.Mkdir(local, fs.FileMode(h.Mode)&0o777|0o700)
}

// write makes a new file. It never follows a link, because the name is free.
func write(root *os.Root, local string, h *tar.Header, content io.Reader) error {
	f, err := root.OpenFile(local, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fs.FileMode(h.Mode)&0o777)
	if err != nil {
		return fmt.Errorf("write the copy: %w", err)
	}
	if _, err := io.Copy(f, content); err != nil {
		return errors.Join(fmt.Errorf("write %q: %w", local, err), f.Close())
	}
	return f.Close()
}

// stays reports whether a link at a name leads to a place inside the copy.
func stays(name, to string) bool {
	return !path.IsAbs(to) && filepath.IsLocal(path.Join(path.Dir(name), to))
}

func (r *reader) skip(h *tar.Header, why string) { r.left = append(r.left, leftOut(h.Name, why)) }

// leftOut returns a line that no name can break: its control characters are escaped.
func leftOut(name, why string) string { return fmt.Sprintf("%q: %s", name, why) }

// Write writes a local file or folder as a stream, with the name base. It follows no link but the
// path itself. left names the files that were left out, with the reason.
func Write(to io.Writer, from, base string) (left []string, err error) {
	full, err := filepath.EvalSymlinks(from)
	if err != nil {
		return nil, fmt.Errorf("read the copy's source: %w", err)
	}
	t := tar.NewWriter(to)
	err = filepath.WalkDir(full, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rest, err := filepath.Rel(full, p)
		if err != nil {
			return err
		}
		why, err := add(t, p, path.Join(base, filepath.ToSlash(rest)), d)
		if why != "" {
			left = append(left, leftOut(p, why))
		}
		return err
	})
	if err != nil {
		return left, fmt.Errorf("send the copy: %w", err)
	}
	return left, t.Close()
}

// add writes one file, folder or link. why is the reason for leaving it out.
func add(t *tar.Writer, p, name string, d fs.DirEntry) (why string, err error) {
	i, err := d.Info()
	if err != nil {
		return "", err
	}
	link := ""
	switch {
	case i.Mode()&fs.ModeSymlink != 0:
		if link, err = os.Readlink(p); err != nil {
			return "", err
		}
	case !i.IsDir() && !i.Mode().IsRegular():
		return "it is a device, a socket or a pipe", nil
	}
	h, err := tar.FileInfoHeader(i, link)
	if err != nil {
		return "", err
	}
	h.Name, h.Uid, h.Gid, h.Uname, h.Gname = name, 0, 0, "", ""
	h.Mode &= 0o777
	if !i.Mode().IsRegular() {
		return "", t.WriteHeader(h)
	}
	f, err := os.Open(p)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if err := t.WriteHeader(h); err != nil {
		return "", err
	}
	// A file that grows meanwhile is cut at its size, and one that shrinks is an error.
	_, err = io.CopyN(t, f, i.Size())
	return "", err
}
