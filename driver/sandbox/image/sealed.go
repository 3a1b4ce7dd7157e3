package image

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"filippo.io/age"
	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// sealedFile is the only file of an encrypted snapshot: an archive of its files, sealed by age.
const sealedFile = "snapshot.tar.age"

// sealedWork is the work factor of age's scrypt. A key of 256 random bits needs no stretching.
const sealedWork = 1

// sealed encrypts the files of snapshots and decrypts them.
type sealed struct {
	key pando.SnapshotKey
	// size bounds the folder in memory, as tmpfs(5) reads it. "": half of the memory of the host.
	size string
}

// fill calls write with a folder in memory, and seals its files into a folder on the disk.
func (s sealed) fill(dir string, write func(memory string) error) error {
	m, err := newMemory(s.size)
	if err != nil {
		return err
	}
	defer m.Close()
	if err := write(m.path()); err != nil {
		if m.full() {
			return fmt.Errorf("%w: an encrypted snapshot needs the memory of the program once more, and "+
				"this host has less; use --plain (`plain: true` in `replicate`), or stop another instance: %v", pando.ErrNoRoom, err)
		}
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, sealedFile), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(s.seal(f, m.path()), f.Close()); err != nil {
		return fmt.Errorf("encrypt a snapshot: %w", err)
	}
	return nil
}

// seal writes the files of a folder.
func (s sealed) seal(f io.Writer, dir string) error {
	to, err := age.NewScryptRecipient(string(s.key))
	if err != nil {
		return err
	}
	to.SetWorkFactor(sealedWork)
	w, err := age.Encrypt(f, to)
	if err != nil {
		return err
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	out := tar.NewWriter(w)
	for _, e := range files {
		if err := sealFile(out, filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return errors.Join(out.Close(), w.Close())
}

func sealFile(out *tar.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return err
	}
	h := &tar.Header{Name: filepath.Base(path), Mode: 0o600, Size: st.Size(), Format: tar.FormatPAX}
	if err := out.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.Copy(out, f)
	return err
}

// unseal writes the files of an encrypted snapshot to a folder.
func (s sealed) unseal(f io.Reader, dir string) error {
	by, err := age.NewScryptIdentity(string(s.key))
	if err != nil {
		return err
	}
	by.SetMaxWorkFactor(sealedWork)
	text, err := age.Decrypt(bufio.NewReader(f), by)
	if err != nil {
		return err
	}
	in := tar.NewReader(text)
	for left := int64(snapshotBytesMax); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if left -= h.Size; left < 0 || h.Typeflag != tar.TypeReg || h.Name != filepath.Base(h.Name) {
			return fmt.Errorf("%w: an entry %q of %d bytes", pando.ErrInvalid, h.Name, h.Size)
		}
		w, err := os.OpenFile(filepath.Join(dir, h.Name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(w, in)
		if err := errors.Join(err, w.Close()); err != nil {
			return err
		}
	}
}

// Open implements pando.Snapshots.
func (s Snapshots) Open(
	ctx context.Context, of pando.ServiceKey, text string,
	key func(context.Context) (pando.SnapshotKey, error),
) (from string, done func(), err error) {
	nothing := func() {}
	st, err := s.Described(text)
	if errors.Is(err, pando.ErrNotFound) || err == nil && st.Service != of {
		err = fmt.Errorf("%w: %.19s is no snapshot that Pando took of %s", pando.ErrForbidden, text, of)
	}
	if err != nil {
		return "", nothing, err
	}
	root, err := s.Root(text, "")
	if err == nil && len(root.Layers) != 1 {
		err = fmt.Errorf("%w: %s is no snapshot", pando.ErrInvalid, text)
	}
	if err != nil {
		return "", nothing, err
	}
	f, err := os.Open(filepath.Join(s.LayersDir(), root.Layers[0], sealedFile))
	if !st.Encrypted && errors.Is(err, fs.ErrNotExist) {
		return root.Layers[0], nothing, nil
	}
	if err != nil {
		return "", nothing, fmt.Errorf("read snapshot %.19s: %w", text, err)
	}
	defer f.Close()
	k, err := key(ctx)
	if err != nil {
		return "", nothing, err
	}
	m, err := newMemory("")
	if err != nil {
		return "", nothing, err
	}
	if err := (sealed{key: k}).unseal(f, m.path()); err != nil {
		m.Close()
		return "", nothing, unopened(text, err)
	}
	return m.path(), func() { m.Close() }, nil
}

// unopened returns the reason why an encrypted snapshot cannot be read.
func unopened(digest string, err error) error {
	if errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("%w: the memory of this host has no room to decrypt a snapshot; stop another "+
			"instance: %w", pando.ErrNoRoom, err)
	}
	return fmt.Errorf("%w: another cluster encrypted snapshot %.19s, or it is damaged; `pando "+
		"snapshot` takes a new one: %w", pando.ErrForbidden, digest, err)
}

// memory is a folder in memory without a name. It ends with this process at the latest.
type memory struct{ *os.File }

// path returns the path of the folder for this process.
func (m memory) path() string { return fmt.Sprintf("/proc/self/fd/%d", m.Fd()) }

// full reports whether no page is left.
func (m memory) full() bool {
	var st unix.Statfs_t
	return unix.Fstatfs(int(m.Fd()), &st) == nil && st.Bavail == 0
}

// newMemory makes a folder in memory of at most a size, or of half of the memory. Linux 6.4 keeps
// it out of the swap space.
func newMemory(size string) (memory, error) {
	failed := func(err error) (memory, error) {
		return memory{}, fmt.Errorf("make a folder in memory for a snapshot: %w", err)
	}
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return failed(err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigSetString(fs, "mode", "0700"); err != nil {
		return failed(err)
	}
	if size != "" {
		if err := unix.FsconfigSetString(fs, "size", size); err != nil {
			return failed(err)
		}
	}
	_ = unix.FsconfigSetFlag(fs, "noswap") // an older kernel does not have it
	if err := unix.FsconfigCreate(fs); err != nil {
		return failed(err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC,
		unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return failed(err)
	}
	return memory{os.NewFile(uintptr(fd), "snapshot")}, nil
}
