package shim

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path"

	"golang.org/x/sys/unix"
	"pando.run/pando/driver/sandbox/process/wire"
)

// heldFiles are files in memory that only the shim changes, by a writable mount of their folder.
// Without a mount there are none.
type heldFiles struct{ mount *os.File }

// holdFiles mounts a folder in memory that is not swapped.
func holdFiles(folder, options string) (heldFiles, error) {
	err := os.MkdirAll(folder, 0o711)
	if err == nil {
		err = unix.Mount("tmpfs", folder, "tmpfs", inert, options+",noswap")
	}
	if errors.Is(err, unix.EINVAL) { // noswap needs Linux 6.4
		err = unix.Mount("tmpfs", folder, "tmpfs", inert, options)
	}
	if err != nil {
		return heldFiles{}, err
	}
	tree, err := unix.OpenTree(unix.AT_FDCWD, folder,
		unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return heldFiles{}, err
	}
	return heldFiles{os.NewFile(uintptr(tree), folder)}, nil
}

// put puts a file in its place at once: a reader sees the former content or this one.
func (h heldFiles) put(name string, text []byte, mode os.FileMode, p wire.Program) error {
	fresh := path.Join(path.Dir(name), ".new")
	in := int(h.mount.Fd())
	_ = unix.Unlinkat(in, fresh, 0) // of a former attempt
	fd, err := unix.Openat(in, fresh, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o400)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), fresh)
	_, err = f.Write(text)
	err = errors.Join(err, f.Chmod(mode), f.Chown(int(p.IDOutside(p.UID)), int(p.IDOutside(p.GID))),
		f.Close())
	if err != nil {
		return errors.Join(err, unix.Unlinkat(in, fresh, 0))
	}
	return unix.Renameat(in, fresh, in, name)
}

// has reports whether a file has this content now.
func (h heldFiles) has(name string, text []byte) bool {
	fd, err := unix.Openat(int(h.mount.Fd()), name,
		unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	now, err := io.ReadAll(io.LimitReader(f, int64(len(text))+1))
	return err == nil && bytes.Equal(now, text)
}
