package image

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// Bounds of one layer beside its bytes.
const (
	entriesMax = 1 << 20
	pathMax    = 4096
	nameMax    = 255
	xattrMax   = 4096 // bytes of one value
)

// Words of layers and of overlayfs.
const (
	whiteout      = ".wh."
	whiteoutMeta  = ".wh..wh."
	whiteoutAll   = ".wh..wh..opq"
	opaque        = "trusted.overlay.opaque"
	userXattr     = "SCHILY.xattr.user."
	xattrOfPAX    = "SCHILY.xattr."
	folderMode    = 0o755
	zstdWindowMax = 128 << 20
)

// unpack makes the folder of a layer from its blob. The files have the digest that the image's
// configuration names, or the folder is not made.
func (s *Store) unpack(ctx context.Context, d v1.Descriptor, files v1.Hash) error {
	if _, err := digest(files.String()); err != nil {
		return err
	}
	if s.unpacked(files) {
		return nil
	}
	// A layer has a lock of its own: one that takes long holds up no other.
	lock, err := s.lockFile(ctx, s.layer(files)+lockSuffix, unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer lock.Close()
	if s.unpacked(files) {
		return nil
	}
	blob, err := os.Open(s.blob(d.Digest))
	if err != nil {
		return fmt.Errorf("unpack layer %s: %w", d.Digest, err)
	}
	defer blob.Close()
	dir, err := os.MkdirTemp(s.LayersDir(), ".new-*")
	var bytes int64
	if err == nil {
		bytes, err = s.unpackTo(ctx, dir, blob, files)
	}
	if err == nil {
		err = writeFile(s.layer(files)+sizeSuffix, fmt.Appendf(nil, "%d", bytes))
	}
	if err == nil {
		err = os.Rename(dir, s.layer(files))
	}
	if err != nil {
		return fmt.Errorf("unpack layer %s: %w", d.Digest, errors.Join(noSpace(err), os.RemoveAll(dir)))
	}
	return nil
}

func (s *Store) unpacked(files v1.Hash) bool {
	st, err := os.Lstat(s.layer(files))
	return err == nil && st.IsDir()
}

// unpackTo unpacks an archive into an empty folder, durably, and returns the bytes of its files.
func (s *Store) unpackTo(
	ctx context.Context, dir string, packed io.Reader, want v1.Hash,
) (int64, error) {
	plain, err := decompress(packed)
	if err != nil {
		return 0, err
	}
	defer plain.Close()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return 0, err
	}
	defer root.Close()
	if err := root.Chmod(".", folderMode); err != nil {
		return 0, err
	}
	sum := sha256.New()
	left := &bounded{r: io.TeeReader(plain, sum), left: 2 * s.UnpackedMax, ctx: ctx}
	u := &unpacker{root: root, left: s.UnpackedMax, times: map[string]time.Time{}}
	if err := u.all(tar.NewReader(left)); err != nil {
		return 0, err
	}
	if _, err := io.Copy(io.Discard, left); err != nil { // what follows the end of the archive
		return 0, err
	}
	got := v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum.Sum(nil))}
	if got != want {
		return 0, wrongDigest(want, got)
	}
	f, err := root.Open(".")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return s.UnpackedMax - u.left, unix.Syncfs(int(f.Fd()))
}

// bounded reads at most a number of bytes, and ends with a context.
type bounded struct {
	r    io.Reader
	left int64
	ctx  context.Context
}

func (b *bounded) Read(p []byte) (int, error) {
	if err := b.ctx.Err(); err != nil {
		return 0, err
	}
	if b.left <= 0 {
		return 0, fmt.Errorf("%w: the layer unpacks to more than its bound", pando.ErrTooLarge)
	}
	n, err := b.r.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

// decompress returns the archive in a blob. The first bytes tell the compression, not a media type.
func decompress(r io.Reader) (io.ReadCloser, error) {
	in := bufio.NewReaderSize(r, 64<<10)
	head, _ := in.Peek(4) // a shorter blob is an archive, or none
	switch {
	case len(head) >= 2 && head[0] == 0x1f && head[1] == 0x8b:
		return gzip.NewReader(in)
	case string(head) == "\x28\xb5\x2f\xfd":
		z, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1),
			zstd.WithDecoderMaxWindow(zstdWindowMax))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	}
	return io.NopCloser(in), nil
}

// unpacker writes the entries of one layer. Its root keeps every path inside the layer's folder.
type unpacker struct {
	root  *os.Root
	left  int64                // bytes that files may still have
	times map[string]time.Time // of folders, set at the end
}

func (u *unpacker) all(in *tar.Reader) error {
	for n := 0; ; n++ {
		h, err := in.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("%w: it is no tar archive: %w", pando.ErrInvalid, err)
		}
		if n >= entriesMax {
			return fmt.Errorf("%w: more than %d files", pando.ErrTooLarge, entriesMax)
		}
		if err := u.entry(h, in); err != nil {
			return fmt.Errorf("%q: %w", h.Name, err)
		}
	}
	for name, at := range u.times {
		if st, err := u.root.Lstat(name); err != nil || !st.IsDir() {
			continue // a later entry replaced it
		}
		if err := u.root.Chtimes(name, at, at); err != nil {
			return err
		}
	}
	return nil
}

// local returns the path of an entry below the layer's folder, "." for the folder itself.
func local(name string) (string, error) {
	if len(name) > pathMax || strings.ContainsRune(name, 0) {
		return "", fmt.Errorf("%w: a path of %d bytes", pando.ErrInvalid, len(name))
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." || len(part) > nameMax {
			return "", fmt.Errorf("%w: the path would leave the layer", pando.ErrForbidden)
		}
	}
	return strings.TrimPrefix(path.Clean("/"+name), "/"), nil
}

func (u *unpacker) entry(h *tar.Header, in io.Reader) error {
	name, err := local(h.Name)
	if err != nil {
		return err
	}
	if name == "" {
		name = "."
	}
	if err := u.parents(path.Dir(name)); err != nil {
		return err
	}
	if base := path.Base(name); strings.HasPrefix(base, whiteout) {
		return u.hide(path.Dir(name), base)
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return u.folder(name, h)
	case tar.TypeReg, tar.TypeGNUSparse, tar.TypeCont: // the reader turns old types into TypeReg
		return u.file(name, h, in)
	case tar.TypeSymlink:
		if err := u.clear(name); err != nil {
			return err
		}
		return errors.Join(u.root.Symlink(h.Linkname, name), u.root.Lchown(name, h.Uid, h.Gid))
	case tar.TypeLink:
		return u.link(name, h.Linkname)
	case tar.TypeFifo:
		return u.node(name, h, unix.S_IFIFO)
	case tar.TypeChar, tar.TypeBlock:
		if strings.HasPrefix(name, "dev/") {
			return nil // every instance has a /dev of its own
		}
		return fmt.Errorf("%w: it is a device, and an image has none outside of /dev",
			pando.ErrForbidden)
	case tar.TypeXGlobalHeader:
		return nil
	}
	return fmt.Errorf("%w: an entry of type %q", pando.ErrInvalid, h.Typeflag)
}

// parents makes the folders above an entry. A folder over a hidden name hides the lower one.
func (u *unpacker) parents(dir string) error {
	if dir == "." {
		return nil
	}
	if st, err := u.root.Stat(dir); err == nil && st.IsDir() {
		return nil
	}
	if err := u.parents(path.Dir(dir)); err != nil {
		return err
	}
	return u.makeFolder(dir)
}

func (u *unpacker) makeFolder(name string) error {
	st, err := u.root.Lstat(name)
	hidden := err == nil && isWhiteout(st)
	switch {
	case err == nil && st.IsDir():
		return nil
	case hidden:
		if err := u.root.Remove(name); err != nil {
			return err
		}
	case err == nil:
		return fmt.Errorf("%w: %s is no folder", pando.ErrInvalid, name)
	}
	if err := u.root.Mkdir(name, folderMode); err != nil {
		return err
	}
	if err := u.root.Chmod(name, folderMode); err != nil { // at any umask
		return err
	}
	if hidden {
		return u.setOpaque(name)
	}
	return nil
}

func (u *unpacker) folder(name string, h *tar.Header) error {
	if st, err := u.root.Lstat(name); err == nil && !st.IsDir() && !isWhiteout(st) {
		if err := u.clear(name); err != nil {
			return err
		}
	}
	if name != "." {
		if err := u.makeFolder(name); err != nil {
			return err
		}
	}
	u.times[name] = h.ModTime
	f, err := u.root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	return errors.Join(u.root.Lchown(name, h.Uid, h.Gid), u.root.Chmod(name, mode(h)), xattrs(f, h))
}

func (u *unpacker) file(name string, h *tar.Header, in io.Reader) error {
	if u.left -= h.Size; h.Size < 0 || u.left < 0 {
		return fmt.Errorf("%w: the layer's files are larger than its bound", pando.ErrTooLarge)
	}
	if err := u.clear(name); err != nil {
		return err
	}
	f, err := u.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, in)
	err = errors.Join(err, f.Chown(h.Uid, h.Gid), f.Chmod(mode(h)), xattrs(f, h), f.Close())
	return errors.Join(err, u.root.Chtimes(name, h.ModTime, h.ModTime))
}

func (u *unpacker) link(name, to string) error {
	to, err := local(to)
	if err != nil {
		return err
	}
	if st, err := u.root.Lstat(to); err != nil || st.IsDir() || isWhiteout(st) {
		return fmt.Errorf("%w: it links to %q, which the layer does not have before it",
			pando.ErrInvalid, to)
	}
	if name == to {
		return nil
	}
	if err := u.clear(name); err != nil {
		return err
	}
	return u.root.Link(to, name)
}

// clear removes what an earlier entry of the layer has put at a name.
func (u *unpacker) clear(name string) error {
	if name == "." {
		return fmt.Errorf("%w: the root of a layer is a folder", pando.ErrInvalid)
	}
	return u.root.RemoveAll(name)
}

// hide writes a whiteout in the form of overlayfs: a device 0:0, or an attribute of a folder.
func (u *unpacker) hide(dir, base string) error {
	switch name := strings.TrimPrefix(base, whiteout); {
	case base == whiteoutAll:
		return u.setOpaque(dir)
	case strings.HasPrefix(base, whiteoutMeta):
		return nil // notes of an old file system
	case name == "" || name == "." || name == "..":
		return fmt.Errorf("%w: a whiteout of %q", pando.ErrInvalid, name)
	default:
		// A whiteout hides the layers below, not this one.
		switch st, err := u.root.Lstat(path.Join(dir, name)); {
		case err == nil && st.IsDir():
			return u.setOpaque(path.Join(dir, name))
		case err == nil:
			return nil
		}
		return u.node(path.Join(dir, name), nil, unix.S_IFCHR)
	}
}

// node makes a pipe, or a whiteout.
func (u *unpacker) node(name string, h *tar.Header, kind uint32) error {
	if err := u.clear(name); err != nil {
		return err
	}
	dir, err := u.root.Open(path.Dir(name))
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Mknodat(int(dir.Fd()), path.Base(name), kind, 0); err != nil {
		return fmt.Errorf("make %s: %w", name, err)
	}
	if h == nil {
		return nil
	}
	return errors.Join(u.root.Lchown(name, h.Uid, h.Gid), u.root.Chmod(name, mode(h)))
}

func (u *unpacker) setOpaque(dir string) error {
	f, err := u.root.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Fsetxattr(int(f.Fd()), opaque, []byte("y"), 0); err != nil {
		return fmt.Errorf("hide what the layers below have in %s: %w", dir, err)
	}
	return nil
}

// isWhiteout reports whether a file hides its name in the layers below.
func isWhiteout(st fs.FileInfo) bool {
	return st.Mode()&fs.ModeCharDevice != 0 // a layer has no other devices
}

// mode returns the mode of an entry.
func mode(h *tar.Header) fs.FileMode {
	const kept = fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky
	return h.FileInfo().Mode() & kept
}

// xattrs sets the attributes of users. Those of the kernel could give rights, or move the folders
// of an overlay.
func xattrs(f *os.File, h *tar.Header) error {
	for name, value := range h.PAXRecords {
		if !strings.HasPrefix(name, userXattr) || len(value) > xattrMax {
			continue
		}
		err := unix.Fsetxattr(int(f.Fd()), strings.TrimPrefix(name, xattrOfPAX), []byte(value), 0)
		if err != nil && err != unix.ENOTSUP {
			return fmt.Errorf("set the attribute %s: %w", filepath.Base(name), err)
		}
	}
	return nil
}
