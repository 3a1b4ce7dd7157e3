package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// furnish gives the sandbox its own view of the host's files: everything read-only but what is its own.
func furnish(self, resolv string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep the sandbox's mounts to itself: %w", err)
	}
	readOnly := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &readOnly); err != nil {
		return fmt.Errorf("make the host's files read-only (mount_setattr needs Linux 5.12): %w", err)
	}
	const plain = unix.MS_NOSUID | unix.MS_NODEV
	for _, m := range []struct {
		source, target, kind string
		flags                uintptr
		data                 string
	}{
		{"proc", "/proc", "proc", plain | unix.MS_NOEXEC, ""},
		{self, "/run/pando", "", unix.MS_BIND, ""},
		{resolv, "/etc/resolv.conf", "", unix.MS_BIND, ""},
		{"tmpfs", "/tmp", "tmpfs", plain, "mode=1777"},
		{"tmpfs", "/dev/shm", "tmpfs", plain, "mode=1777"},
	} {
		err := unix.Mount(m.source, m.target, m.kind, m.flags, m.data)
		if err != nil && !(m.target == "/dev/shm" && errors.Is(err, fs.ErrNotExist)) {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	return openNetwork()
}

// openNetwork sets what only a process inside can set: any port may be bound, and addresses are good at once.
func openNetwork() error {
	for _, s := range []struct{ key, value string }{
		{"ipv4/ip_unprivileged_port_start", "0"},
		{"ipv6/conf/all/accept_ra", "0"},
		{"ipv6/conf/default/accept_ra", "0"},
		{"ipv6/conf/default/accept_dad", "0"},
	} {
		err := os.WriteFile("/proc/sys/net/"+s.key, []byte(s.value), 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // a kernel without IPv6
			return fmt.Errorf("set net/%s: %w", s.key, err)
		}
	}
	return nil
}

// settle puts the working directory, cloned from the host's mounts by the driver, where the program expects it. Only so
// does it stay writable, or visible at all when it lies below a /tmp that is now private.
func settle(tree *os.File, dir string) error {
	if tree == nil {
		return nil
	}
	defer tree.Close()
	if _, err := os.Stat(dir); err != nil {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make a place for working_dir %s: %w", filepath.Clean(dir), err)
		}
	}
	if err := unix.MoveMount(int(tree.Fd()), "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount working_dir %s: %w", dir, err)
	}
	return nil
}
