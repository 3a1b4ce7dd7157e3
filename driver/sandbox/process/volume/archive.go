package volume

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/untrusted"
	"pando.run/pando/driver/sandbox/process/wire"
)

// Archive writes all volumes below a folder of a host as a tar archive. Programs may write
// meanwhile: each file is as its reader finds it. Sockets, pipes and devices are left out.
//
// A volume belongs to an untrusted program. No link in it leads the reader out of it.
func Archive(ctx context.Context, dir string, w io.Writer) error {
	out := tar.NewWriter(w)
	parts, err := filepath.Glob(filepath.Join(dir, "*", "*", "*", "*"))
	if err != nil {
		return err
	}
	homes := map[string]bool{}
	d := &Store{dir: dir}
	for _, part := range parts {
		st, err := os.Lstat(part)
		v, ok := d.keptAt(part)
		if err != nil || !st.IsDir() || !ok {
			continue
		}
		home := path.Join(string(v.Service.Tenant), string(v.Service.Name))
		if !homes[home] {
			homes[home] = true
			if err := archiveFolder(out, filepath.Join(dir, home), home); err != nil {
				return err
			}
		}
		name := path.Join(home, v.Name, v.Part)
		if err := archivePart(ctx, out, part, name); err != nil {
			return fmt.Errorf("read volume %s: %w", part, err)
		}
	}
	return out.Close()
}

func archiveFolder(out *tar.Writer, dir, name string) error {
	st, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	return header(out, st, "", name)
}

func header(out *tar.Writer, st fs.FileInfo, link, name string) error {
	h, err := tar.FileInfoHeader(st, link)
	if err != nil {
		return err
	}
	h.Name, h.Uname, h.Gname, h.Format = name, "", "", tar.FormatPAX
	if st.IsDir() {
		h.Name += "/"
	}
	return out.WriteHeader(h)
}

// archivePart writes the files of one folder of a volume, without those in too many folders. A host
// starts no instance of a tenant with such files.
func archivePart(ctx context.Context, out *tar.Writer, dir, name string) error {
	st, err := os.Lstat(dir)
	if err == nil {
		err = header(out, st, "", name)
	}
	if err != nil {
		return ignoreGone(err)
	}
	_, err = untrusted.Walk(ctx, dir, pando.VolumeDepthMax, func(f *untrusted.File) error {
		at := wire.DescriptorPath(f.Dir) + "/" + f.Name
		st, err := os.Lstat(at)
		if err != nil {
			return ignoreGone(err)
		}
		to := path.Join(name, filepath.ToSlash(f.Path))
		switch st.Mode().Type() {
		case fs.ModeDir:
			return header(out, st, "", to)
		case fs.ModeSymlink:
			link, err := os.Readlink(at)
			if err != nil {
				return ignoreGone(err)
			}
			return header(out, st, link, to)
		case 0:
			return archiveFile(out, at, to)
		}
		return nil
	})
	return err
}

// archiveFile writes a regular file with the size that it has at first. A file that shrinks
// meanwhile ends with zeros.
func archiveFile(out *tar.Writer, at, to string) error {
	f, err := os.OpenFile(at, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		if errors.Is(err, unix.ELOOP) {
			return nil // a link has replaced it
		}
		return ignoreGone(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return err
	}
	if isSparse(f) {
		return archiveSparse(out, f, to)
	}
	if err := header(out, st, "", to); err != nil {
		return err
	}
	return copyOrZeros(out, f, st.Size())
}

// restoring begins the name of a part that RestoreVolumes fills.
const restoring = ".restore-"

// Restore brings the volumes of an archive back below a folder of a host, and returns the
// names of those. A volume that is there already stays as it is.
func Restore(dir string, r io.Reader) (back []string, err error) {
	v := restore{dir: dir}
	defer func() { err = errors.Join(err, v.leave()) }()
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return v.back, v.finish()
		}
		if err == nil {
			err = v.entry(h, in)
		}
		if err != nil {
			return v.back, fmt.Errorf("bring back the volumes: %w", err)
		}
	}
}

// restore is one run of RestoreVolumes.
type restore struct {
	dir  string
	part string   // the part that it fills, below dir; "": none
	root *os.Root // of its files under a temporary name
	back []string
}

// entry brings back one entry of the archive.
func (v *restore) entry(h *tar.Header, in io.Reader) error {
	name := strings.TrimSuffix(h.Name, "/")
	words := strings.SplitN(name, "/", 5)
	if !filepath.IsLocal(name) || path.Clean(name) != name || len(words) < 2 ||
		pando.CheckLabel("tenant", words[0]) != nil || pando.CheckLabel("service", words[1]) != nil {
		return fmt.Errorf("%w: an entry %q", pando.ErrInvalid, h.Name)
	}
	switch len(words) {
	case 2:
		return v.home(name, h)
	case 3:
		return fmt.Errorf("%w: an entry %q", pando.ErrInvalid, h.Name)
	}
	if part := path.Join(words[:4]...); part != v.part {
		if err := v.finish(); err != nil {
			return err
		}
		if err := v.begin(part); err != nil {
			return err
		}
	}
	switch {
	case v.root == nil:
		return nil // it is there already
	case len(words) == 4:
		return v.put(".", h, in)
	}
	return v.put(words[4], h, in)
}

// home makes the folder of a service with its uid, which no other service may have.
func (v *restore) home(name string, h *tar.Header) error {
	if err := v.finish(); err != nil {
		return err
	}
	own := filepath.Join(v.dir, filepath.FromSlash(name))
	all, err := filepath.Glob(filepath.Join(v.dir, "*", "*"))
	if err != nil {
		return err
	}
	for _, dir := range all {
		st, err := os.Stat(dir)
		if err == nil && (dir == own) != (OwnerOf(st) == uint32(h.Uid)) {
			return fmt.Errorf("%w: %s has uid %d, and the volumes of %s in the archive have uid %d; "+
				"bring volumes back before the first deploy", pando.ErrConflict, dir, OwnerOf(st), name, h.Uid)
		}
	}
	if err := os.MkdirAll(own, 0o711); err != nil {
		return err
	}
	return os.Chown(own, h.Uid, 0)
}

// begin opens a part under a temporary name, unless it is there already.
func (v *restore) begin(part string) error {
	v.part = part
	at := filepath.Join(v.dir, filepath.FromSlash(part))
	if _, err := os.Lstat(at); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(at), 0o711); err != nil {
		return err
	}
	fresh := v.fresh()
	if err := errors.Join(os.RemoveAll(fresh), os.Mkdir(fresh, 0o700)); err != nil {
		return err
	}
	var err error
	v.root, err = os.OpenRoot(fresh)
	return err
}

// fresh returns the temporary name of the part.
func (v *restore) fresh() string {
	dir, name := path.Split(v.part)
	return filepath.Join(v.dir, filepath.FromSlash(dir), restoring+name)
}

// put makes one file, folder or link of the part.
func (v *restore) put(at string, h *tar.Header, in io.Reader) error {
	mode := fs.FileMode(h.Mode) & fs.ModePerm
	var err error
	switch h.Typeflag {
	case tar.TypeDir:
		err = v.root.Mkdir(at, 0o700)
		if at == "." || errors.Is(err, fs.ErrExist) {
			err = nil
		}
		err = errors.Join(err, v.root.Lchown(at, h.Uid, h.Gid), v.root.Chmod(at, mode))
	case tar.TypeSymlink:
		err = errors.Join(v.root.Symlink(h.Linkname, at), v.root.Lchown(at, h.Uid, h.Gid))
	case tar.TypeReg:
		f, oerr := v.root.OpenFile(at, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if oerr != nil {
			return oerr
		}
		if size, sparse := h.PAXRecords[sparseRecord]; sparse {
			err = restoreSparse(f, size, in)
		} else {
			_, err = io.Copy(f, in)
		}
		err = errors.Join(err, f.Chown(h.Uid, h.Gid), f.Chmod(mode), f.Sync(), f.Close(),
			v.root.Chtimes(at, h.ModTime, h.ModTime))
	default:
		err = fmt.Errorf("%w: an entry %q of kind %q", pando.ErrInvalid, h.Name, h.Typeflag)
	}
	return err
}

// finish puts the part in its place.
func (v *restore) finish() error {
	if v.root == nil {
		v.part = ""
		return nil
	}
	err := errors.Join(v.root.Close(), os.Rename(v.fresh(),
		filepath.Join(v.dir, filepath.FromSlash(v.part))))
	v.root = nil
	if err == nil {
		v.back = append(v.back, v.part)
	}
	v.part = ""
	return err
}

// leave deletes an unfinished part.
func (v *restore) leave() error {
	if v.root == nil {
		return nil
	}
	return errors.Join(v.root.Close(), os.RemoveAll(v.fresh()))
}
