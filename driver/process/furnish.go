package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// keepWritable clones the mounts that the shim has to write to, before the sandbox sees everything read-only. The clones
// hang in no namespace: they are reached through their descriptors only, which the program does not inherit.
func (s *shim) keepWritable(logs string) error {
	path, err := cloneTree(logs)
	if err != nil {
		return err
	}
	if s.logs, err = os.OpenRoot(path); err != nil {
		return fmt.Errorf("open the folder of the logs: %w", err)
	}
	s.groups, err = cloneTree(cgroupRoot)
	return err
}

func cloneTree(dir string) (string, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return "", fmt.Errorf("keep %s writable (open_tree needs Linux 5.2): %w", dir, err)
	}
	return fmt.Sprintf("/proc/self/fd/%d", fd), nil
}

// furnish gives the sandbox its own view of the host's files: all of them read-only, but for what is its own.
func furnish(self, resolv string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep the sandbox's mounts to itself: %w", err)
	}
	if err := unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return fmt.Errorf("make the host's files read-only (mount_setattr needs Linux 5.12): %w", err)
	}
	const plain = unix.MS_NOSUID | unix.MS_NODEV
	for _, m := range []struct {
		source, target, kind string
		flags                uintptr
		data                 string
	}{
		{"proc", "/proc", "proc", plain | unix.MS_NOEXEC, ""},
		{resolv, "/etc/resolv.conf", "", unix.MS_BIND, ""},
		{"tmpfs", "/dev/shm", "tmpfs", plain, "mode=1777"},
		// Last, for it may cover the folder in which the other sources lie.
		{self, "/run/pando", "", unix.MS_BIND, ""},
	} {
		err := unix.Mount(m.source, m.target, m.kind, m.flags, m.data)
		if err != nil && !(m.target == "/dev/shm" && errors.Is(err, fs.ErrNotExist)) {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	return nil
}

// settle gives the program a /tmp of its own, and its working directory: writable as far as the folder's own mode allows,
// and still there if it lies below /tmp.
func settle(dir string) error {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the working directory %s: %w", dir, err)
	}
	defer unix.Close(fd)
	if err := unix.Mount("tmpfs", "/tmp", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777"); err != nil {
		return fmt.Errorf("mount a private /tmp: %w", err)
	}
	if dir == "/" || dir == "/tmp" {
		return nil
	}
	if strings.HasPrefix(dir, "/tmp/") {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", fd), dir, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("keep the working directory %s: %w", dir, err)
	}
	if err := unix.MountSetattr(unix.AT_FDCWD, dir, 0, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return fmt.Errorf("make the working directory %s writable: %w", dir, err)
	}
	return nil
}
