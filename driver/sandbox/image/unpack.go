package image

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// Bounds of one layer beside its bytes.
const (
	entriesMax = 1 << 20
	pathMax    = 4096
	partsMax   = 100 // of one path
	nameMax    = 255
	foldersMax = 64 << 20 // bytes of the paths of folders, which stay in memory
	parentsMax = 64       // folders that stay open
	xattrMax   = 4096     // bytes of one value
)

// Words of layers and of overlayfs.
const (
	whiteout     = ".wh."
	whiteoutMeta = ".wh..wh."
	whiteoutAll  = ".wh..wh..opq"
	opaque       = "trusted.overlay.opaque"
	userXattr    = "SCHILY.xattr.user."
	xattrOfPAX   = "SCHILY.xattr."
	folderMode   = 0o755
	windowMax    = 128 << 20 // of zstd, and the dictionary of xz
)

// unpack makes the folder of a layer from its blob. The files have the digest that the image's
// configuration names, or the folder is not made.
//
// left is what the image may still unpack to.
func (s *Store) unpack(
	ctx context.Context, d v1.Descriptor, files v1.Hash, left *allowance,
) error {
	if _, err := digest(files.String()); err != nil {
		return err
	}
	if s.unpacked(files) && s.sent.Unpacks(d.Digest, files) {
		return nil
	}
	// A layer has a lock of its own: one that takes long holds up no other.
	lock, err := s.lockFile(ctx, s.layer(files)+lockSuffix, unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer lock.Close()
	if s.unpacked(files) && s.sent.Unpacks(d.Digest, files) {
		return nil
	}
	if err := s.refusals.of(d.Digest, files, s.Clock.Now()); err != nil {
		return err
	}
	blob, err := os.Open(s.blob(d.Digest))
	if err != nil {
		return fmt.Errorf("unpack layer %s: %w", d.Digest, err)
	}
	defer blob.Close()
	dir, err := os.MkdirTemp(s.LayersDir(), ".new-*")
	done, most := report{}, left.now()
	if err == nil {
		done, err = s.unpackApart(ctx, dir, blob,
			task{Files: files.String(), Bytes: most, FreeMin: s.FreeMin})
	}
	// What is too large for the rest of this image may fit into another one.
	lasts := ofContent(err) && (most == s.UnpackedMax || !errors.Is(err, pando.ErrTooLarge))
	if err == nil {
		err = left.take(done.Bytes)
	}
	if err == nil {
		err = s.settleLayer(d, files, dir, done)
	}
	if err != nil {
		refused := ofContent(err)
		err = fmt.Errorf("unpack layer %s: %w", d.Digest, errors.Join(noSpace(err), os.RemoveAll(dir)))
		if refused {
			err = layerError{err}
		}
		if lasts {
			s.refusals.add(d.Digest, files, err, s.Clock.Now())
		}
		return err
	}
	if len(done.Without) > 0 && s.Log != nil {
		s.Log.Warn("a layer of an image has entries that no instance can have: they are left out",
			"layer", files.String(), "entries", pando.Few(done.Without))
	}
	return nil
}

// settleLayer gives an unpacked layer its name. A layer of another blob may be there already: then
// this blob is only known to have the same files.
func (s *Store) settleLayer(d v1.Descriptor, files v1.Hash, dir string, done report) error {
	if s.unpacked(files) {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	} else if err := errors.Join(
		noteOwners(s.vault, files, done.Owners),
		writeFile(s.layer(files)+sizeSuffix, fmt.Appendf(nil, "%d", done.Bytes)),
		os.Rename(dir, s.layer(files))); err != nil {
		return err
	}
	return s.sent.Unpacked(d.Digest, files)
}

func (s *Store) unpacked(files v1.Hash) bool {
	st, err := os.Lstat(s.layer(files))
	return err == nil && st.IsDir()
}

// task is the unpacking of one layer, with its bounds.
type task struct {
	Files   string `json:"files"`    // the digest of the archive
	Bytes   int64  `json:"bytes"`    // that its files may have
	FreeMin int64  `json:"free_min"` // that stay free on the disk
}

// unpackTo unpacks an archive into an empty folder, durably. It reports the bytes of the files and
// the entries that it left out.
func (t task) unpackTo(ctx context.Context, dir string, packed io.Reader) (report, error) {
	plain, err := decompress(packed)
	if err != nil {
		return report{}, fmt.Errorf("%w: its compression: %w", pando.ErrInvalid, err)
	}
	defer plain.Close()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return report{}, err
	}
	defer root.Close()
	if err := root.Chmod(".", folderMode); err != nil {
		return report{}, err
	}
	sum := sha256.New()
	left := &bounded{r: io.TeeReader(plain, sum), left: 2 * t.Bytes, ctx: ctx}
	u := &unpacker{root: root, left: t.Bytes, times: map[string]time.Time{},
		disk: &looks{room: func() error { return room(dir, 0, t.FreeMin) }}}
	defer u.forget()
	if err := u.all(tar.NewReader(left)); err != nil {
		return report{}, err
	}
	if _, err := io.Copy(io.Discard, left); err != nil { // what follows the end of the archive
		return report{}, err
	}
	got := v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum.Sum(nil))}
	want, err := digest(t.Files)
	if err != nil {
		return report{}, err
	}
	if got != want {
		return report{}, wrongDigest(want, got)
	}
	f, err := root.Open(".")
	if err != nil {
		return report{}, err
	}
	defer f.Close()
	return report{Bytes: t.Bytes - u.left, Without: u.without, Owners: u.owners}, unix.Syncfs(int(f.Fd()))
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

// Between two looks at the free space of the disk.
const (
	lookBytes   = 16 << 20
	lookEntries = 1 << 12
)

// unpacker writes the entries of one layer. Its root keeps every path inside the layer's folder.
type unpacker struct {
	root  *os.Root
	left  int64                // bytes that files may still have
	times map[string]time.Time // of folders, set at the end
	named int                  // bytes of the keys of times
	disk  *looks
	// parents are open folders by path. An entry thus walks no path again.
	parents map[string]*os.Root
	without []string // entries that were left out, as far as they are counted
	owners  []uint32 // the large ids of files
	stale   bool     // something took the place of an open folder, perhaps
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
		if n%lookEntries == 0 {
			if err := u.disk.room(); err != nil {
				return err
			}
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

// looks are looks at the free space of a disk, while files are written to it.
type looks struct {
	room    func() error // an error once the disk has too little space
	written int64        // since the last look
}

// spacious looks at the free space of the disk from time to time, while bytes go through it.
type spacious struct {
	io.Writer
	disk *looks
}

func (s spacious) Write(p []byte) (int, error) {
	if s.disk.written += int64(len(p)); s.disk.written >= lookBytes {
		s.disk.written = 0
		if err := s.disk.room(); err != nil {
			return 0, err
		}
	}
	return s.Writer.Write(p)
}

// copyTo writes bytes of a stranger to a file of the store. Their number is known at the end alone.
func copyTo(ctx context.Context, s *Store, f *os.File, r io.Reader) (int64, error) {
	disk := &looks{room: func() error { return s.room(0) }}
	if err := disk.room(); err != nil {
		return 0, err
	}
	n, err := io.Copy(spacious{f, disk}, &bounded{r: r, left: s.UnpackedMax, ctx: ctx})
	return n, noSpace(err)
}

// parent opens a folder of the layer.
func (u *unpacker) parent(dir string) (*os.Root, error) {
	if dir == "." {
		return u.root, nil
	}
	if r := u.parents[dir]; r != nil {
		return r, nil
	}
	r, err := u.root.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	if len(u.parents) >= parentsMax {
		u.forget()
	}
	if u.parents == nil {
		u.parents = map[string]*os.Root{}
	}
	u.parents[dir] = r
	return r, nil
}

// forget closes the open folders.
func (u *unpacker) forget() {
	for _, r := range u.parents {
		r.Close()
	}
	clear(u.parents)
}

// local returns the path of an entry below the layer's folder, "." for the folder itself.
func local(name string) (string, error) {
	if len(name) > pathMax || strings.ContainsRune(name, 0) {
		return "", fmt.Errorf("%w: a path of %d bytes", pando.ErrInvalid, len(name))
	}
	parts := 0
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." || len(part) > nameMax {
			return "", fmt.Errorf("%w: the path would leave the layer", pando.ErrForbidden)
		}
		if parts++; parts > partsMax {
			return "", fmt.Errorf("%w: a path of more than %d parts", pando.ErrTooLarge, partsMax)
		}
	}
	return strings.TrimPrefix(path.Clean("/"+name), "/"), nil
}

// place is where an entry goes: a name in an open folder of the layer.
type place struct {
	in   *os.Root
	base string
	path string // from the root of the layer
}

func (u *unpacker) entry(h *tar.Header, in io.Reader) error {
	name, err := local(h.Name)
	if err != nil {
		return err
	}
	if name == "" {
		name = "."
	}
	if u.stale {
		u.forget()
		u.stale = false
	}
	if err := u.makeParents(path.Dir(name)); err != nil {
		return err
	}
	at := place{base: path.Base(name), path: name}
	if at.in, err = u.parent(path.Dir(name)); err != nil {
		return err
	}
	if strings.HasPrefix(at.base, whiteout) {
		return u.hide(at)
	}
	u.own(h)
	switch h.Typeflag {
	case tar.TypeDir:
		return u.folder(at, h)
	case tar.TypeReg, tar.TypeGNUSparse, tar.TypeCont: // the reader turns old types into TypeReg
		return u.file(at, h, in)
	case tar.TypeSymlink:
		if err := u.clear(at); err != nil {
			return err
		}
		return errors.Join(at.in.Symlink(h.Linkname, at.base), at.in.Lchown(at.base, h.Uid, h.Gid))
	case tar.TypeLink:
		return u.link(at, h.Linkname)
	case tar.TypeFifo:
		return u.node(at, h, unix.S_IFIFO)
	case tar.TypeChar, tar.TypeBlock:
		if strings.HasPrefix(name, "dev/") {
			return nil // every instance has a /dev of its own
		}
		u.leaveOut("device " + name)
		// It takes the place of what the layers below have there.
		return u.node(at, nil, unix.S_IFCHR)
	case tar.TypeXGlobalHeader:
		return nil
	}
	u.leaveOut(fmt.Sprintf("%s of type %q", name, h.Typeflag))
	return nil
}

// oddMax bounds the names of entries that are left out.
const oddMax = 64

// leaveOut notes an entry that is left out.
func (u *unpacker) leaveOut(what string) {
	if len(u.without) < oddMax {
		u.without = append(u.without, what)
	}
}

// makeParents makes the folders above an entry. A folder over a hidden name hides the lower one.
func (u *unpacker) makeParents(dir string) error {
	if dir == "." || u.parents[dir] != nil {
		return nil
	}
	if st, err := u.root.Stat(dir); err == nil && st.IsDir() {
		return nil
	}
	if err := u.makeParents(path.Dir(dir)); err != nil {
		return err
	}
	in, err := u.parent(path.Dir(dir))
	if err != nil {
		return err
	}
	return u.makeFolder(place{in, path.Base(dir), dir})
}

func (u *unpacker) makeFolder(at place) error {
	st, err := at.in.Lstat(at.base)
	hidden := err == nil && isWhiteout(st)
	switch {
	case err == nil && st.IsDir():
		return nil
	case hidden:
		if err := at.in.Remove(at.base); err != nil {
			return err
		}
	case err == nil:
		return fmt.Errorf("%w: %s is no folder", pando.ErrInvalid, at.path)
	}
	if err := at.in.Mkdir(at.base, folderMode); err != nil {
		return err
	}
	if err := at.in.Chmod(at.base, folderMode); err != nil { // at any umask
		return err
	}
	if hidden {
		return setOpaque(at.in, at.base)
	}
	return nil
}

func (u *unpacker) folder(at place, h *tar.Header) error {
	if st, err := at.in.Lstat(at.base); err == nil && !st.IsDir() && !isWhiteout(st) {
		if err := u.clear(at); err != nil {
			return err
		}
	}
	if at.path != "." {
		if err := u.makeFolder(at); err != nil {
			return err
		}
	}
	if _, again := u.times[at.path]; !again {
		if u.named += len(at.path); u.named > foldersMax {
			return fmt.Errorf("%w: the paths of its folders have more than %d MiB", pando.ErrTooLarge,
				foldersMax>>20)
		}
	}
	u.times[at.path] = h.ModTime
	f, err := at.in.Open(at.base)
	if err != nil {
		return err
	}
	defer f.Close()
	return errors.Join(at.in.Lchown(at.base, h.Uid, h.Gid), at.in.Chmod(at.base, mode(h)), xattrs(f, h))
}

func (u *unpacker) file(at place, h *tar.Header, in io.Reader) error {
	if u.left -= h.Size; h.Size < 0 || u.left < 0 {
		return fmt.Errorf("%w: the layer's files are larger than its bound", pando.ErrTooLarge)
	}
	if err := u.clear(at); err != nil {
		return err
	}
	f, err := at.in.OpenFile(at.base, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(spacious{f, u.disk}, in)
	err = errors.Join(err, f.Chown(h.Uid, h.Gid), f.Chmod(mode(h)), xattrs(f, h), f.Close())
	return errors.Join(err, at.in.Chtimes(at.base, h.ModTime, h.ModTime))
}

func (u *unpacker) link(at place, to string) error {
	to, err := local(to)
	if err != nil {
		return err
	}
	if st, err := u.root.Lstat(to); err != nil || st.IsDir() || isWhiteout(st) {
		return fmt.Errorf("%w: it links to %q, which the layer does not have before it",
			pando.ErrInvalid, to)
	}
	if at.path == to {
		return nil
	}
	if err := u.clear(at); err != nil {
		return err
	}
	return u.root.Link(to, at.path)
}

// clear removes what an earlier entry of the layer has put at a name.
func (u *unpacker) clear(at place) error {
	if at.path == "." {
		return fmt.Errorf("%w: the root of a layer is a folder", pando.ErrInvalid)
	}
	st, err := at.in.Lstat(at.base)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err == nil && (st.IsDir() || st.Mode()&fs.ModeSymlink != 0):
		u.stale = true // it may be above an open folder
	}
	return at.in.RemoveAll(at.base)
}

// hide writes a whiteout in the form of overlayfs: a device 0:0, or an attribute of a folder.
func (u *unpacker) hide(at place) error {
	switch name := strings.TrimPrefix(at.base, whiteout); {
	case at.base == whiteoutAll:
		return setOpaque(at.in, ".")
	case strings.HasPrefix(at.base, whiteoutMeta):
		return nil // notes of an old file system
	case name == "" || name == "." || name == "..":
		return fmt.Errorf("%w: a whiteout of %q", pando.ErrInvalid, name)
	default:
		// A whiteout hides the layers below, not this one.
		switch st, err := at.in.Lstat(name); {
		case err == nil && st.IsDir():
			return setOpaque(at.in, name)
		case err == nil:
			return nil
		}
		return u.node(place{at.in, name, path.Join(path.Dir(at.path), name)}, nil, unix.S_IFCHR)
	}
}

// node makes a pipe, or a whiteout.
func (u *unpacker) node(at place, h *tar.Header, kind uint32) error {
	if err := u.clear(at); err != nil {
		return err
	}
	dir, err := at.in.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Mknodat(int(dir.Fd()), at.base, kind, 0); err != nil {
		return fmt.Errorf("make %s: %w", at.path, err)
	}
	if h == nil {
		return nil
	}
	return errors.Join(at.in.Lchown(at.base, h.Uid, h.Gid), at.in.Chmod(at.base, mode(h)))
}

func setOpaque(in *os.Root, dir string) error {
	f, err := in.Open(dir)
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

// largeID is the first id that a service does not have by its number. The sandboxes give such an id a
// place of its own, so they must know which ones the files of an image have.
const largeID = 1 << 20

// own notes the large ids of an entry. What is beyond the bound belongs to nobody inside, and the log
// says so.
func (u *unpacker) own(h *tar.Header) {
	for _, id := range []int{h.Uid, h.Gid} {
		if id < largeID || int(uint32(id)) != id || slices.Contains(u.owners, uint32(id)) {
			continue
		}
		if len(u.owners) >= pando.LargeIDsMax {
			u.leaveOut(fmt.Sprintf("owner %d of %s", id, h.Name))
			continue
		}
		u.owners = append(u.owners, uint32(id))
	}
}

// noteOwners keeps the large ids of a layer beside its folder.
func noteOwners(s *vault, files v1.Hash, owners []uint32) error {
	if len(owners) == 0 {
		return nil
	}
	text, err := json.Marshal(owners)
	if err != nil {
		return err
	}
	return writeFile(s.layer(files)+ownersSuffix, text)
}

// ownersOf returns the large ids of layers, in order.
func ownersOf(s *vault, layers []v1.Hash) (out []uint32, err error) {
	for _, files := range layers {
		text, err := os.ReadFile(s.layer(files) + ownersSuffix)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var owners []uint32
		if err == nil {
			err = json.Unmarshal(text, &owners)
		}
		if err != nil {
			return nil, fmt.Errorf("read the owners of layer %s: %w", files, err)
		}
		out = append(out, owners...)
	}
	slices.Sort(out)
	out = slices.Compact(out)
	return out[:min(len(out), pando.LargeIDsMax)], nil
}
