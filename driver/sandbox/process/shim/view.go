package shim

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
	"pando.run/pando/driver/sandbox/process/view"
	"pando.run/pando/driver/sandbox/process/wire"
)

// systemFiles are the names in /etc that libraries read: names of users, hosts and services, time,
// language, certificates and the linker's cache. A program also sees those of its own name.
var systemFiles = []string{
	"alternatives", "bash.bashrc", "ca-certificates", "ca-certificates.conf", "crypto-policies",
	"debian_version", "environment", "fonts", "gai.conf", "group", "gss", "host.conf", "hosts",
	"inputrc", "java*", "krb5.conf", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.alias",
	"locale.conf", "localtime", "lsb-release", "magic", "magic.mime", "mailcap", "mime.types", "mtab",
	"networks", "nsswitch.conf", "odbc.ini", "odbcinst.ini", "os-release", "passwd", "perl", "pki",
	"profile", "profile.d", "protocols", "python*", "rpc", "services", "shells", "ssl", "terminfo",
	"timezone", "xattr.conf", "xdg",
}

const (
	newRoot  = "/dev"   // of the host, on which the view is built: a view has no devices of the host
	hostRoot = "/.host" // in the view, until its program starts
)

// build makes the view's root with the system's folders, and moves the host's root below it.
func build() error {
	if err := unix.Mount("tmpfs", newRoot, "tmpfs", plain, "mode=755,size=8m"); err != nil {
		return fmt.Errorf("make the root of the view: %w", err)
	}
	paths := slices.Clone(view.SystemFolders)
	for _, pattern := range systemFiles {
		found, err := filepath.Glob(filepath.Join("/etc", pattern))
		if err != nil {
			return err
		}
		paths = append(paths, found...)
	}
	for _, path := range paths {
		if err := showSystem(path); err != nil {
			return fmt.Errorf("show %s: %w", path, err)
		}
	}
	at := filepath.Join(newRoot, hostRoot)
	if err := os.Mkdir(at, 0); err != nil {
		return err
	}
	if err := unix.PivotRoot(newRoot, at); err != nil {
		return fmt.Errorf("enter the view: %w", err)
	}
	return os.Chdir("/")
}

// showSystem shows a path of the host's system, if the host has it. Links stay links: their targets
// are in the view too.
func showSystem(path string) error {
	at := filepath.Join(newRoot, path)
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		to, err := os.Readlink(path)
		if err != nil {
			return err
		}
		return os.Symlink(to, at)
	}
	if err := mountPoint(at, info.IsDir()); err != nil {
		return err
	}
	return bind(path, at, unix.MS_REC, false)
}

// mountPoint makes an empty folder or file.
func mountPoint(at string, folder bool) error {
	if folder {
		return os.MkdirAll(at, 0o755)
	}
	f, err := os.OpenFile(at, os.O_CREATE|os.O_RDONLY, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

// bind mounts one path at another without set-uid programs and devices.
func bind(from, at string, recursive uintptr, write bool) error {
	if err := unix.Mount(from, at, "", unix.MS_BIND|recursive, ""); err != nil {
		return err
	}
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	if write {
		attr.Attr_clr = unix.MOUNT_ATTR_RDONLY
	} else {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	var flags uint
	if recursive != 0 {
		flags = unix.AT_RECURSIVE
	}
	if err := unix.MountSetattr(unix.AT_FDCWD, at, flags, attr); err != nil {
		return fmt.Errorf("set its mount (mount_setattr needs Linux 5.12): %w", err)
	}
	return nil
}

// leaveHost gives up the host's root, before any program starts. From then on the shim cannot show
// more of it.
func leaveHost() error {
	if err := unix.Unmount(hostRoot, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the host's root: %w", err)
	}
	return os.Remove(hostRoot)
}

// settle shows the program the paths of its spec, its working directory the last. Then it makes the
// root of the view read-only.
func (s *shim) settle(p wire.Program) error {
	volumes, err := s.takeVolumes(p)
	if err != nil {
		return err
	}
	tree, err := s.takeBundle(p.Bundle)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	for _, path := range p.Show {
		if err := show(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("show %s of the host: %w", path.Path, err)
		}
	}
	for _, dir := range s.hidden {
		if err := cover(dir, "mode=755,size=4k", unix.MS_RDONLY|inert); err != nil {
			return err
		}
	}
	own := view.InVolume(p, p.Dir) || p.Bundle != nil && view.IsBelow(p.Bundle.Path, p.Dir)
	if p.Dir != "/" && !own && !slices.Contains(view.PrivateFolders, p.Dir) {
		if err := show(wire.HostPath{Path: p.Dir, Write: !p.ReadOnly}); err != nil {
			return fmt.Errorf("keep the working directory %s: %w", p.Dir, err)
		}
	}
	if err := s.keepSecrets(p); err != nil {
		return err
	}
	if err := leaveHost(); err != nil {
		return err
	}
	if err := showBundle(p.Bundle, tree); err != nil {
		return err
	}
	if err := mountVolumes(volumes, p, ""); err != nil {
		return err
	}
	err = errors.Join(nameMachine(p, ""), makeDevices(p.Devices), s.keepConfigs(p))
	if err != nil {
		return err
	}
	return readOnly("/", 0)
}

// show mounts a path of the host at the same path of the view. Links on the way are the host's.
func show(path wire.HostPath) error {
	host, err := unix.Open(hostRoot, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(host)
	fd, err := unix.Openat2(host, path.Path, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT,
	})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	kind := st.Mode & unix.S_IFMT
	if kind != unix.S_IFDIR && kind != unix.S_IFREG && kind != unix.S_IFSOCK {
		return fmt.Errorf("it is no folder, file or socket")
	}
	if _, err := os.Stat(path.Path); err == nil && !path.Write && view.IsVisible(path.Path) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path.Path), 0o755); err != nil {
		return err
	}
	if err := mountPoint(path.Path, kind == unix.S_IFDIR); err != nil {
		return err
	}
	return bind(wire.DescriptorPath(fd), path.Path, 0, path.Write)
}
