package shim

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"

	"golang.org/x/sys/unix"
	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/wire"
)

// A new volume of an image's program begins as the folder of the image at its path, as in Docker: it
// has its owner, its mode and a copy of its files. The driver makes the folder and marks it as fresh.
// The shim fills it while it has the image's files, and then takes the mark away, so a death on the
// way leaves a fresh volume.

// awaitFresh waits until this shim alone has a fresh volume, and reports whether it is to fill it. The
// driver ends a start that takes too long.
func awaitFresh(fd int, shared bool) (bool, error) {
	if !isFresh(fd) {
		return false, nil
	}
	if shared {
		if err := unix.Flock(fd, unix.LOCK_EX); err != nil {
			return false, err
		}
	}
	return isFresh(fd), nil
}

// fillVolume fills the fresh volume of a descriptor, by a mount of it, from the image below a root.
// Then others may share it.
func fillVolume(root, tree, volume int, at string, shared bool, p wire.Program) error {
	s := seeder{p: p, files: seedFilesMax, bytes: seedBytesMax}
	to, err := unix.Openat(tree, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(to)
	if err := s.clear(to); err != nil {
		return fmt.Errorf("empty a volume that was filled in part: %w", err)
	}
	owner, err := s.fill(root, to, at)
	if err == nil {
		err = errors.Join(unix.Fchown(to, owner.UID, owner.GID), unix.Fchmod(to, owner.Mode))
	}
	if err == nil {
		err = unix.Fremovexattr(volume, wire.FreshMark)
	}
	if err == nil && shared {
		err = unix.Flock(volume, unix.LOCK_SH)
	}
	if err != nil {
		return fmt.Errorf("fill the new volume at %s from the image: %w", at, err)
	}
	return nil
}

func isFresh(fd int) bool {
	_, err := unix.Fgetxattr(fd, wire.FreshMark, nil)
	return err == nil
}

// namesIn returns the names in an open folder.
func namesIn(dir int) ([]string, error) {
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), ".")
	defer f.Close()
	return f.Readdirnames(-1)
}

// Bounds of the files that a new volume gets from its image.
const (
	seedFilesMax = 200_000
	seedBytesMax = 4 << 30
)

// seeder copies files of an image into a volume.
type seeder struct {
	p     wire.Program
	files int // that it may still copy
	bytes int64
	// handed is the user of a folder of the image that its program could not write. What that user has
	// in it belongs to the program then.
	handed *uint32
}

// clear empties a folder that a shim which died has filled in part.
func (s *seeder) clear(dir int) error {
	names, err := namesIn(dir)
	if err != nil || len(names) == 0 {
		return err
	}
	root, err := os.OpenRoot(wire.DescriptorPath(dir))
	if err != nil {
		return err
	}
	defer root.Close()
	for _, name := range names {
		if err := root.RemoveAll(name); err != nil {
			return err
		}
	}
	return nil
}

func (s *seeder) copyBelow(from, to int, name string) error {
	if err := s.make(func() error { return unix.Mkdirat(to, name, 0o700) }); err != nil {
		return err
	}
	const how = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	below, err := unix.Openat(from, name, how, 0)
	if err != nil {
		return err
	}
	defer unix.Close(below)
	made, err := unix.Openat(to, name, how, 0)
	if err != nil {
		return err
	}
	defer unix.Close(made)
	return s.copyFolder(below, made)
}

func (s *seeder) copyFile(from, to int, name string, size int64) error {
	if s.bytes -= size; s.bytes < 0 {
		return fmt.Errorf("%w: its files have more than %d GiB; mount the volume at another path, and "+
			"copy them there", pando.ErrTooLarge, seedBytesMax>>30)
	}
	fd, err := unix.Openat(from, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	in := os.NewFile(uintptr(fd), name)
	defer in.Close()
	err = s.make(func() (err error) {
		fd, err = unix.Openat(to, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
		return err
	})
	if err != nil {
		return err
	}
	out := os.NewFile(uintptr(fd), name)
	_, err = io.CopyN(out, in, size)
	return errors.Join(err, out.Close())
}

// copyFolder copies the files of an open folder into another. Links stay links. Devices, sockets and
// pipes stay out.
func (s *seeder) copyFolder(from, to int) error {
	names, err := namesIn(from)
	if err != nil {
		return err
	}
	for _, name := range names {
		if s.files--; s.files < 0 {
			return fmt.Errorf("%w: it has more than %d files; mount the volume at another path, and copy "+
				"them there", pando.ErrTooLarge, seedFilesMax)
		}
		var st unix.Stat_t
		if err := unix.Fstatat(from, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			err = s.copyBelow(from, to, name)
		case unix.S_IFREG:
			err = s.copyFile(from, to, name, st.Size)
		case unix.S_IFLNK:
			err = s.copyLink(from, to, name)
		default:
			continue
		}
		if err == nil {
			uid, gid := s.ownerOf(st)
			err = unix.Fchownat(to, name, uid, gid, unix.AT_SYMLINK_NOFOLLOW)
		}
		if err == nil && st.Mode&unix.S_IFMT != unix.S_IFLNK {
			err = unix.Fchmodat(to, name, st.Mode&0o7777, 0)
		}
		if err == nil {
			err = unix.UtimesNanoAt(to, name, []unix.Timespec{st.Atim, st.Mtim},
				unix.AT_SYMLINK_NOFOLLOW)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func (s *seeder) copyLink(from, to int, name string) error {
	target := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(from, name, target)
	if err != nil {
		return err
	}
	return s.make(func() error { return unix.Symlinkat(string(target[:n]), to, name) })
}

// fill copies the folder of the image at a path, if it has one, and returns the owner and mode of the
// volume. A volume that the program could not write belongs to the program.
func (s *seeder) fill(root, to int, at string) (wire.Owner, error) {
	own := wire.Owner{UID: int(s.p.IDOutside(s.p.UID)), GID: int(s.p.IDOutside(s.p.GID)), Mode: 0o755}
	from, err := unix.Openat2(root, path.Clean(at)[1:], &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err == unix.ENOENT || err == unix.ENOTDIR {
		return own, nil
	}
	if err != nil {
		return own, err
	}
	defer unix.Close(from)
	var st unix.Stat_t
	if err := unix.Fstat(from, &st); err != nil {
		return own, err
	}
	image := wire.Owner{UID: int(st.Uid), GID: int(st.Gid), Mode: st.Mode & 0o7777}
	within := wire.Owner{UID: int(s.p.IDInside(st.Uid)), GID: int(s.p.IDInside(st.Gid)), Mode: image.Mode}
	if s.p.MayWrite(within) {
		return image, s.copyFolder(from, to)
	}
	own.Mode, s.handed = image.Mode|0o700, &st.Uid
	return own, s.copyFolder(from, to)
}

// ownerOf returns the owner of a copied file, outside.
func (s *seeder) ownerOf(st unix.Stat_t) (uid, gid int) {
	if s.handed != nil && st.Uid == *s.handed {
		return int(s.p.IDOutside(s.p.UID)), int(s.p.IDOutside(s.p.GID))
	}
	return int(st.Uid), int(st.Gid)
}

// make makes a file as root of the program's users: the host's root does not exist in a volume with
// mapped users.
func (s *seeder) make(do func() error) error {
	if s.p.Users == nil {
		return do()
	}
	root := int(s.p.IDOutside(0))
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := errors.Join(unix.Setfsgid(root), unix.Setfsuid(root))
	if err == nil {
		err = do()
	}
	return errors.Join(err, unix.Setfsuid(0), unix.Setfsgid(0))
}
