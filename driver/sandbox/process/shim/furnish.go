package shim

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/view"
	"pando.run/pando/driver/sandbox/process/wire"
)

// keepWritable clones the mounts that the shim writes to, before the sandbox becomes read-only. The
// clones are in no namespace. Only their descriptors reach them, and the program does not inherit
// those.
func (s *shim) keepWritable(f wire.Furniture) error {
	logs, err := cloneTree(f.Logs)
	if err != nil {
		return err
	}
	if s.logs, err = os.OpenRoot(logs); err != nil {
		return fmt.Errorf("open the folder of the logs: %w", err)
	}
	groups, err := cloneTree(f.Cgroups)
	if err != nil {
		return err
	}
	s.groups, err = os.Open(groups)
	return err
}

func cloneTree(dir string) (string, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, dir,
		unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return "", fmt.Errorf("keep %s writable (open_tree needs Linux 5.2): %w", dir, err)
	}
	return wire.DescriptorPath(fd), nil
}

// Flags of mounts without any privilege.
const (
	plain = unix.MS_NOSUID | unix.MS_NODEV
	inert = plain | unix.MS_NOEXEC
)

// Bounds of an instance's own folders in memory. The kernel's default is half of the host's memory
// in each.
const (
	coverLarge = "size=512m" // /tmp, /var/tmp, /dev/shm
	coverSmall = "size=64m"
)

// furnish gives the sandbox its own view of the host's files: the system's, read-only, and the
// instance's own.
func (s *shim) furnish(f wire.Furniture) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep the sandbox's mounts to itself: %w", err)
	}
	// Opened while they are still visible.
	var fds []int
	for _, path := range []string{f.Self, f.Resolv, f.Cgroups} {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open %s: %w", path, err)
		}
		defer unix.Close(fd)
		fds = append(fds, fd)
	}
	if err := build(); err != nil {
		return err
	}
	for _, step := range []func() error{
		furnishProc, furnishDev, func() error { return furnishSys(f, fds[2]) }, furnishPrivate,
		func() error { return bindAt(fds[0], "/run/pando") },
		func() error { return bindResolv(fds[1]) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	s.hidden = f.Hidden
	return nil
}

// furnishPrivate gives the sandbox its own, empty folders.
func furnishPrivate() error {
	for _, dir := range view.PrivateFolders {
		mode := "mode=755," + coverSmall
		switch {
		case dir == "/run":
			mode = "mode=1777," + coverSmall
		case strings.HasSuffix(dir, "/tmp"):
			mode = "mode=1777," + coverLarge
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := cover(dir, mode, plain); err != nil {
			return err
		}
	}
	for _, dir := range []string{"/var/lib", "/var/cache", "/var/log", "/opt", "/srv", "/mnt"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return errors.Join(os.Symlink("/run", "/var/run"), os.Symlink("/run/lock", "/var/lock"))
}

func readOnly(dir string, flags uint) error {
	if err := unix.MountSetattr(unix.AT_FDCWD, dir, flags,
		&unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return fmt.Errorf("make %s read-only (mount_setattr needs Linux 5.12): %w", dir, err)
	}
	return nil
}

// cover mounts an empty folder over one of the host, if the host has it.
func cover(dir, options string, flags uintptr) error {
	if err := unix.Mount("tmpfs", dir, "tmpfs", flags, options); err != nil &&
		!errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cover %s: %w", dir, err)
	}
	return nil
}

// bindAt mounts the target of a descriptor at a folder, and makes the folder.
func bindAt(fd int, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", dir, err)
	}
	if err := bind(wire.DescriptorPath(fd), dir, 0, false); err != nil {
		return fmt.Errorf("mount %s: %w", dir, err)
	}
	return nil
}

// bindResolv gives the sandbox its own resolv.conf.
func bindResolv(fd int) error {
	const at = "/etc/resolv.conf"
	if err := mountPoint(at, false); err != nil {
		return fmt.Errorf("make %s: %w", at, err)
	}
	if err := unix.Mount(wire.DescriptorPath(fd), at, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s: %w", at, err)
	}
	return readOnly(at, 0)
}

// furnishProc mounts the sandbox's own /proc. Its files of the whole machine are read-only or
// empty, even for a program that runs as root inside. Those files check only the user, not a
// capability.
func furnishProc() error {
	if err := os.Mkdir("/proc", 0o755); err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", inert, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	for _, name := range procReadOnly {
		dir := "/proc/" + name
		if err := unix.Mount(dir, dir, "", unix.MS_BIND|unix.MS_REC, ""); errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
		if err := readOnly(dir, 0); err != nil {
			return err
		}
	}
	for _, name := range procHidden {
		if err := unix.Mount("/dev/null", "/proc/"+name, "", unix.MS_BIND, ""); err != nil &&
			!errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("hide /proc/%s: %w", name, err)
		}
	}
	return nil
}

// furnishDev mounts a /dev with the devices that every program may have, and none of the machine's.
func furnishDev() error {
	if err := os.Mkdir("/dev", 0o755); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", "/dev", "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC,
		"mode=755,size=64k"); err != nil {
		return fmt.Errorf("mount /dev: %w", err)
	}
	for name, minor := range map[string]uint32{"null": 3, "zero": 5, "full": 7, "random": 8,
		"urandom": 9} {
		if err := unix.Mknod("/dev/"+name, unix.S_IFCHR|0o666, int(unix.Mkdev(1, minor))); err != nil {
			return fmt.Errorf("make /dev/%s: %w", name, err)
		}
		if err := os.Chmod("/dev/"+name, 0o666); err != nil { // at any umask
			return err
		}
	}
	if err := unix.Mknod("/dev/tty", unix.S_IFCHR|0o666, int(unix.Mkdev(5, 0))); err != nil {
		return fmt.Errorf("make /dev/tty: %w", err)
	}
	if err := os.Chmod("/dev/tty", 0o666); err != nil { // a program opens its own terminal there
		return err
	}
	for name, to := range map[string]string{"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0",
		"stdout": "/proc/self/fd/1",
		"stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx"} {
		if err := os.Symlink(to, "/dev/"+name); err != nil {
			return err
		}
	}
	for _, m := range []struct {
		kind, at, options string
		flags             uintptr
	}{
		{"devpts", "/dev/pts", "newinstance,ptmxmode=0666,mode=0620", 0},
		{"tmpfs", "/dev/shm", "mode=1777," + coverLarge, unix.MS_NODEV},
		{"mqueue", "/dev/mqueue", "", unix.MS_NODEV},
	} {
		if err := os.Mkdir(m.at, 0o755); err != nil {
			return err
		}
		err := unix.Mount(m.kind, m.at, m.kind, unix.MS_NOSUID|unix.MS_NOEXEC|m.flags, m.options)
		if err != nil && !errors.Is(err, unix.ENODEV) { // this kernel lacks it
			return fmt.Errorf("mount %s: %w", m.at, err)
		}
	}
	return readOnly("/dev", 0)
}

// furnishSys mounts a /sys that shows the sandbox's own network and cgroup. Programs read their
// limits there. Of the host's cgroups it shows none, because their names are those of neighbours.
func furnishSys(f wire.Furniture, cgroups int) error {
	if err := os.Mkdir("/sys", 0o755); err != nil {
		return err
	}
	if err := unix.Mount("sysfs", "/sys", "sysfs", inert|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("mount /sys: %w", err)
	}
	if err := furnishCgroups(f.Entry, cgroups); err != nil {
		return err
	}
	return cover("/sys/firmware", "size=4k", unix.MS_RDONLY|inert)
}

// furnishCgroups shows the cgroup of the instance where programs look for the hierarchies. The
// kernel has the folder for them.
func furnishCgroups(e pando.CgroupEntry, groups int) error {
	const at = "/sys/fs/cgroup"
	show := func(group, at string) error {
		if err := bind(path.Join(wire.DescriptorPath(groups), group), at, 0, false); err != nil {
			return fmt.Errorf("show its cgroup at %s: %w", at, err)
		}
		return nil
	}
	if e.Folder != "" {
		return show(e.Folder, at)
	}
	if err := unix.Mount("tmpfs", at, "tmpfs", inert, "mode=755,size=64k"); err != nil {
		return fmt.Errorf("mount %s: %w", at, err)
	}
	for _, tasks := range e.Tasks {
		group := path.Dir(tasks)
		hierarchy, _, _ := strings.Cut(local(group), "/")
		err := os.MkdirAll(path.Join(at, hierarchy), 0o755)
		if err == nil {
			err = show(group, path.Join(at, hierarchy))
		}
		for _, one := range strings.Split(hierarchy, ",") { // cpu of cpu,cpuacct
			if err == nil && one != hierarchy {
				err = os.Symlink(hierarchy, path.Join(at, one))
			}
		}
		if err != nil {
			return err
		}
	}
	return readOnly(at, 0)
}
