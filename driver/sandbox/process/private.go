package process

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// privateFile is the archive of a snapshot with the files of the sandbox's own folders in memory.
const privateFile = "private.tar"

// privateBytesMax bounds the files in memory of one snapshot.
const privateBytesMax = 256 << 20

// frozenFolders are the folders with the files of a snapshot. Sockets and secrets stay out: the new
// sandbox has its own.
var frozenFolders = []string{"tmp", "var/tmp", "run", "root", "home", "dev/shm"}

// frozenLeft are the folders that the new sandbox fills itself.
var frozenLeft = map[string]bool{"run/pando": true, "run/secrets": true, "run/image": true,
	criuCache: true}

// criuCache is a file that CRIU as root reads and makes. No program may write it.
const criuCache = "run/criu.kdat"

// packPrivate writes the files of the sandbox with a root. Its program is stopped.
func packPrivate(at, dir string) error {
	root, err := os.OpenRoot(at)
	if err != nil {
		return fmt.Errorf("open the files of the sandbox: %w", err)
	}
	defer root.Close()
	f, err := os.OpenFile(filepath.Join(dir, privateFile), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	p := &privatePacker{root: root, out: tar.NewWriter(f), left: privateBytesMax}
	for _, folder := range frozenFolders {
		if !inMemory(filepath.Join(at, folder), &p.device) {
			continue // a folder of the host
		}
		err := fs.WalkDir(root.FS(), folder, p.add)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("store the files of /%s: %w", folder, err)
		}
	}
	return p.out.Close()
}

type privatePacker struct {
	root *os.Root
	out  *tar.Writer
	left int64
	// device is that of the folder. Other mounts are folders of the host, or are made anew.
	device uint64
}

// inMemory reports whether a folder is in memory, and returns its device.
func inMemory(folder string, device *uint64) bool {
	var fs unix.Statfs_t
	var st unix.Stat_t
	if unix.Statfs(folder, &fs) != nil || unix.Lstat(folder, &st) != nil {
		return false
	}
	*device = st.Dev
	return fs.Type == unix.TMPFS_MAGIC
}

func (p *privatePacker) add(name string, e fs.DirEntry, err error) error {
	if err != nil {
		return err
	}
	if frozenLeft[name] {
		if e.IsDir() {
			return fs.SkipDir
		}
		return nil
	}
	st, err := e.Info()
	if err != nil {
		return err
	}
	if of := st.Sys().(*syscall.Stat_t); of.Dev != p.device {
		if st.IsDir() {
			return fs.SkipDir
		}
		return nil
	}
	target := ""
	switch {
	case st.Mode()&fs.ModeSymlink != 0:
		if target, err = p.root.Readlink(name); err != nil {
			return err
		}
	case !st.IsDir() && !st.Mode().IsRegular():
		return nil // sockets and pipes are CRIU's
	}
	h, err := tar.FileInfoHeader(st, target)
	if err != nil {
		return err
	}
	of := st.Sys().(*syscall.Stat_t)
	h.Name, h.Uid, h.Gid, h.Format = name, int(of.Uid), int(of.Gid), tar.FormatPAX
	h.Uname, h.Gname = "", ""
	if st.Mode().IsRegular() {
		if p.left -= st.Size(); p.left < 0 {
			return fmt.Errorf("%w: the files in memory have more than %d MiB; keep them in a volume",
				pando.ErrTooLarge, privateBytesMax>>20)
		}
	}
	if err := p.out.WriteHeader(h); err != nil || !st.Mode().IsRegular() {
		return err
	}
	f, err := p.root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.CopyN(p.out, f, h.Size)
	return err
}

// unpackPrivate writes the files of a snapshot into a sandbox without a program. Anybody can make
// such a file, so it writes below the folders in memory only, and follows no link of the archive.
func unpackPrivate(at, dir string) error {
	root, err := os.OpenRoot(at)
	if err != nil {
		return fmt.Errorf("open the files of the sandbox: %w", err)
	}
	defer root.Close()
	f, err := os.Open(filepath.Join(dir, privateFile))
	if err != nil {
		return err
	}
	defer f.Close()
	u := &privateUnpacker{root: root, left: privateBytesMax, device: map[string]uint64{}}
	for _, folder := range frozenFolders {
		var device uint64
		if inMemory(filepath.Join(at, folder), &device) {
			u.device[folder] = device
		}
	}
	for in := tar.NewReader(f); ; {
		h, err := in.Next()
		if err == io.EOF {
			return nil
		}
		if err == nil {
			err = u.put(h, in)
		}
		if err != nil {
			return fmt.Errorf("bring back the files in memory: %w", err)
		}
	}
}

type privateUnpacker struct {
	root *os.Root
	left int64
	// device is that of each folder in memory. A file of another device is another mount: a folder of
	// the host, a volume, a file of the kernel.
	device map[string]uint64
}

// within returns nil if a name may be written: it and its folder are of a folder in memory.
func (u *privateUnpacker) within(name string) error {
	bad := fmt.Errorf("%w: %q is not in a folder of the sandbox in memory", pando.ErrForbidden, name)
	for left := range frozenLeft {
		if name == left || strings.HasPrefix(name, left+"/") {
			return bad
		}
	}
	for folder, device := range u.device {
		if name != folder && !strings.HasPrefix(name, folder+"/") {
			continue
		}
		if name != folder {
			st, err := u.root.Stat(filepath.Dir(name))
			if err != nil || st.Sys().(*syscall.Stat_t).Dev != device {
				return bad
			}
		}
		st, err := u.root.Lstat(name)
		if err == nil && st.Sys().(*syscall.Stat_t).Dev != device {
			return bad
		}
		return nil
	}
	return bad
}

func (u *privateUnpacker) put(h *tar.Header, in io.Reader) error {
	root, name := u.root, strings.TrimSuffix(h.Name, "/")
	if frozenLeft[name] {
		return nil
	}
	if !filepath.IsLocal(name) || filepath.Clean(name) != name {
		return fmt.Errorf("%w: the name %q", pando.ErrInvalid, h.Name)
	}
	if err := u.within(name); err != nil {
		return err
	}
	was, err := root.Lstat(name)
	mode := h.FileInfo().Mode()
	switch h.Typeflag {
	case tar.TypeDir:
		if err == nil && !was.IsDir() {
			return fmt.Errorf("%w: %q is no folder", pando.ErrForbidden, name)
		}
		if err := root.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	case tar.TypeSymlink:
		err := root.Symlink(h.Linkname, name)
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		return errors.Join(err, root.Lchown(name, h.Uid, h.Gid))
	case tar.TypeReg:
		if err == nil && !was.Mode().IsRegular() {
			return fmt.Errorf("%w: %q is no file", pando.ErrForbidden, name)
		}
		if err := u.write(name, h.Size, in); err != nil {
			return err
		}
	default:
		return nil
	}
	err = root.Chown(name, h.Uid, h.Gid)
	if err == nil {
		if !mode.IsDir() { // no file of memory gives the rights of its owner
			mode &^= fs.ModeSetuid | fs.ModeSetgid
		}
		err = root.Chmod(name, mode)
	}
	if errors.Is(err, syscall.EROFS) { // a folder of the view itself
		return nil
	}
	return err
}

// write writes one file. What Pando packs has at most privateBytesMax in all.
func (u *privateUnpacker) write(name string, size int64, in io.Reader) error {
	if u.left -= size; u.left < 0 {
		return fmt.Errorf("%w: its files have more than %d MiB", pando.ErrTooLarge, privateBytesMax>>20)
	}
	w, err := u.root.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, in)
	return errors.Join(err, w.Close())
}
