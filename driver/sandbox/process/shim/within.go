package shim

import (
	"errors"
	"io"
	"path"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// fileIn opens a file below a root as a place for a mount, and makes an empty one if it is not
// there. No link leads out of the root.
func fileIn(root int, file string, owner uint32) (int, error) {
	how := &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	}
	fd, err := unix.Openat2(root, file, how)
	if err != unix.ENOENT {
		return fd, err
	}
	parent, err := folderIn(root, path.Dir(file), owner)
	if err != nil {
		return -1, err
	}
	defer unix.Close(parent)
	make := func() error {
		made, err := unix.Openat(parent, path.Base(file),
			unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_RDONLY|unix.O_CLOEXEC, 0o644)
		if err == nil {
			unix.Close(made)
		}
		return err
	}
	if err = make(); err == unix.EOVERFLOW {
		err = asOwner(parent, make)
	}
	if err != nil {
		return -1, err
	}
	return unix.Openat2(root, file, how)
}

// asOwner calls do with the user of a folder's owner. The host's root does not exist in a volume
// with mapped users, so nothing there can belong to it.
func asOwner(folder int, do func() error) error {
	var st unix.Stat_t
	if err := unix.Fstat(folder, &st); err != nil {
		return err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := errors.Join(unix.Setfsgid(int(st.Gid)), unix.Setfsuid(int(st.Uid)))
	if err == nil {
		err = do()
	}
	return errors.Join(err, unix.Setfsuid(0), unix.Setfsgid(0))
}

// carry moves a mount of the sandbox to the same place in an image.
func carry(root int, dir string, owner uint32) error {
	from, err := unix.Open("/"+dir, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(from)
	to, err := folderIn(root, dir, owner)
	if err != nil {
		return err
	}
	defer unix.Close(to)
	return unix.MoveMount(from, "", to, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// folderIn opens a folder below a root, and makes it for an owner if it is not there. No link leads
// out of the root.
func folderIn(root int, dir string, owner uint32) (int, error) {
	if dir == "." {
		return unix.FcntlInt(uintptr(root), unix.F_DUPFD_CLOEXEC, 0)
	}
	how := &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	}
	fd, err := unix.Openat2(root, dir, how)
	if err != unix.ENOENT {
		return fd, err
	}
	parent, err := folderIn(root, path.Dir(dir), owner)
	if err != nil {
		return -1, err
	}
	defer unix.Close(parent)
	err = unix.Mkdirat(parent, path.Base(dir), 0o755)
	if err == unix.EOVERFLOW {
		err = asOwner(parent, func() error { return unix.Mkdirat(parent, path.Base(dir), 0o755) })
	} else if err == nil {
		err = unix.Fchownat(parent, path.Base(dir), int(owner), int(owner), unix.AT_SYMLINK_NOFOLLOW)
	}
	if err != nil {
		return -1, err
	}
	return unix.Openat2(root, dir, how)
}

// plainFile opens a file of a folder. It makes a missing one with a text, and replaces a link.
func plainFile(dir int, name, text string, owner uint32) (int, error) {
	const how = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
	var st unix.Stat_t
	err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
		return unix.Openat(dir, name, how, 0)
	}
	if err == nil {
		if err := unix.Unlinkat(dir, name, 0); err != nil {
			return -1, err
		}
	}
	fd, err := unix.Openat(dir, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return -1, err
	}
	n, err := unix.Write(fd, []byte(text))
	if err == nil && n < len(text) {
		err = io.ErrShortWrite // the file system of the upper layer is full
	}
	err = errors.Join(err, unix.Fchown(fd, int(owner), int(owner)))
	if err = errors.Join(err, unix.Close(fd)); err != nil {
		return -1, err
	}
	return unix.Openat(dir, name, how, 0)
}

// local returns a path below a root without its first slash.
func local(path string) string { return strings.TrimPrefix(path, "/") }
