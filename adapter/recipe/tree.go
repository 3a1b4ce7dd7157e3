package recipe

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Bounds of an image's own files.
const (
	entriesMax = 100_000
	bytesMax   = 4 << 30
)

// entry is a file, a folder or a link of the image.
type entry struct {
	mode fs.FileMode
	from string // the file of this machine; "": text
	text []byte
	size int64
	link string // the target of a symbolic link
}

// tree is the files that an image gets, by path without the first slash.
type tree struct {
	entries map[string]entry
	bytes   int64
	folders map[string]bool // folders of the base, in which links of this machine do not replace them
}

func (t *tree) put(name string, e entry) error {
	name = strings.TrimPrefix(path.Clean(name), "/")
	if _, known := t.entries[name]; known || name == "" || name == "." {
		return nil
	}
	if t.bytes += e.size; t.bytes > bytesMax || len(t.entries) == entriesMax {
		return fmt.Errorf("the image would have more than %d files or 4 GiB", entriesMax)
	}
	t.entries[name] = e
	return nil
}

// parents adds the folders above a path and returns the path with their links resolved. A folder
// that is a link on this machine, such as /lib, is the same link in the image, unless the base has
// a folder there.
func (t *tree) parents(name string) (string, error) {
	at := "/"
	words := strings.Split(strings.Trim(path.Clean(name), "/"), "/")
	for links, i := 0, 0; i < len(words)-1; i++ {
		next := path.Join(at, words[i])
		st, err := os.Lstat(next)
		link := err == nil && st.Mode()&fs.ModeSymlink != 0 && !t.folders[next[1:]]
		if !link {
			if err := t.put(next, entry{mode: fs.ModeDir | 0o755}); err != nil {
				return "", err
			}
			at = next
			continue
		}
		to, err := os.Readlink(next)
		if err == nil {
			err = t.put(next, entry{mode: fs.ModeSymlink | 0o777, link: to})
		}
		if links++; err != nil || links > 40 {
			return "", errors.Join(err, fmt.Errorf("%s: its folders have too many links", name))
		}
		if !path.IsAbs(to) {
			to = path.Join(at, to)
		}
		words = append(strings.Split(strings.Trim(path.Clean(to), "/"), "/"), words[i+1:]...)
		at, i = "/", -1
	}
	return path.Join(at, words[len(words)-1]), nil
}

// host adds a file, a folder without its files, or a link of this machine at its own path, and the
// target of the link.
func (t *tree) host(name string) error {
	for range 40 {
		real, err := t.parents(name)
		if err != nil {
			return err
		}
		st, err := os.Lstat(real)
		if err != nil {
			return err
		}
		if t.folders[real[1:]] {
			return nil
		}
		if st.Mode()&fs.ModeSymlink == 0 {
			return t.file(real, real, st)
		}
		to, err := os.Readlink(real)
		if err != nil {
			return err
		}
		if err := t.put(real, entry{mode: fs.ModeSymlink | 0o777, link: to}); err != nil {
			return err
		}
		if name = to; !path.IsAbs(to) {
			name = path.Join(path.Dir(real), to)
		}
		if _, err := os.Lstat(name); errors.Is(err, fs.ErrNotExist) {
			return nil // a link to a file that only a running system has
		}
	}
	return fmt.Errorf("%s: too many links", name)
}

// file adds a file or an empty folder. Everything in an image can be read by each of its users.
func (t *tree) file(from, to string, st fs.FileInfo) error {
	switch {
	case st.IsDir():
		return t.put(to, entry{mode: st.Mode()&(fs.ModeSticky|0o777) | fs.ModeDir | 0o555})
	case st.Mode().IsRegular():
		return t.put(to, entry{mode: st.Mode()&0o777 | 0o444, from: from, size: st.Size()})
	}
	return fmt.Errorf("%s: an image has files, folders and links only", from)
}

// copy adds a file or a folder with its files at another path.
func (t *tree) copy(from, to string) error {
	if st, err := os.Stat(from); err == nil && !st.IsDir() {
		return errors.Join(t.above(to), t.file(from, to, st))
	}
	return filepath.WalkDir(from, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, name)
		if err != nil {
			return err
		}
		at := path.Join(to, filepath.ToSlash(rel))
		if err := t.above(at); err != nil {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		if st.Mode()&fs.ModeSymlink == 0 {
			return t.file(name, at, st)
		}
		link, err := os.Readlink(name)
		if err != nil {
			return err
		}
		return t.put(at, entry{mode: fs.ModeSymlink | 0o777, link: link})
	})
}

// above adds the folders above a path of the image.
func (t *tree) above(name string) error {
	dir := path.Dir(name)
	if dir == "/" || t.folders[dir[1:]] || t.entries[dir[1:]].mode != 0 {
		return nil
	}
	return errors.Join(t.above(dir), t.put(dir, entry{mode: fs.ModeDir | 0o755}))
}

// write writes the tree as the archive of a layer.
func (t *tree) write(to io.Writer) error {
	w := tar.NewWriter(to)
	for _, name := range slices.Sorted(maps.Keys(t.entries)) {
		e := t.entries[name]
		h := &tar.Header{Name: name, Mode: int64(e.mode.Perm()), Size: e.size, Typeflag: tar.TypeReg,
			Format: tar.FormatPAX}
		if e.mode&fs.ModeSticky != 0 {
			h.Mode |= 0o1000
		}
		switch {
		case e.mode.IsDir():
			h.Typeflag, h.Name = tar.TypeDir, name+"/"
		case e.link != "":
			h.Typeflag, h.Linkname = tar.TypeSymlink, e.link
		}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		if err := e.contents(w); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return w.Close()
}

// contents writes the bytes of a file. A file that grows meanwhile is an error.
func (e entry) contents(w io.Writer) error {
	if e.from == "" {
		_, err := io.Copy(w, bytes.NewReader(e.text))
		return err
	}
	f, err := os.Open(e.from)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}
