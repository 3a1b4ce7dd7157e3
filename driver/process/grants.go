package process

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// grant gives a program the grants of its spec: devices, paths, the network.
func grant(p *program, s pando.Spec, hidden []string) error {
	for _, g := range s.Grants {
		switch g.Kind() {
		case pando.GrantDevice:
			dev, err := deviceOf(g.Device())
			if err != nil {
				return err
			}
			p.Devices = append(p.Devices, dev)
		case pando.GrantPath:
			at, write := g.Path()
			if _, err := os.Stat(at); errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("%w: grants: %s is missing on this host: load its driver, or "+
					"`pando hosts deny` it here", pando.ErrNotFound, at)
			}
			all, err := binds([]pando.Folder{{Path: at, At: at, Write: write}}, hidden)
			if err != nil {
				return fmt.Errorf("grants: %w", err)
			}
			p.Volumes = append(p.Volumes, all...)
		case pando.GrantNetns:
			p.HostNet = true
		}
	}
	return nil
}

// deviceOf returns the device of a name in the host's /dev.
func deviceOf(name string) (pando.Device, error) {
	var st unix.Stat_t
	err := unix.Stat("/dev/"+name, &st)
	if errors.Is(err, fs.ErrNotExist) {
		return pando.Device{}, fmt.Errorf("%w: grants: this host has no /dev/%s: load its driver, or "+
			"`pando hosts deny` it here", pando.ErrNotFound, name)
	}
	if err != nil {
		return pando.Device{}, fmt.Errorf("grants: look at /dev/%s: %w", name, err)
	}
	kind := st.Mode & unix.S_IFMT
	if kind != unix.S_IFCHR && kind != unix.S_IFBLK {
		return pando.Device{}, fmt.Errorf("%w: grants: /dev/%s is no device", pando.ErrInvalid, name)
	}
	return pando.Device{Name: name, Block: kind == unix.S_IFBLK,
		Major: unix.Major(st.Rdev), Minor: unix.Minor(st.Rdev)}, nil
}

// makeDevices makes the granted devices in the sandbox's own /dev. Any user of the sandbox may open
// them, as its program may run as several users.
func makeDevices(all []pando.Device) (err error) {
	if len(all) == 0 {
		return nil
	}
	if err := openDev(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, readOnly("/dev", 0)) }()
	for _, d := range all {
		at := filepath.Join("/dev", d.Name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			return err
		}
		kind := uint32(unix.S_IFCHR)
		if d.Block {
			kind = unix.S_IFBLK
		}
		err := unix.Mknod(at, kind|0o666, int(unix.Mkdev(d.Major, d.Minor)))
		if err == nil {
			err = os.Chmod(at, 0o666)
		}
		if err != nil {
			return fmt.Errorf("make the granted device %s: %w", at, err)
		}
	}
	return nil
}

// openDev makes the sandbox's own /dev writable.
func openDev() error {
	writable := &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(unix.AT_FDCWD, "/dev", 0, writable); err != nil {
		return fmt.Errorf("open /dev for devices: %w", err)
	}
	return nil
}

// giveDevices makes root of the program's users the owner of the sandbox's own /dev. It was made
// ahead of need, by root of the host, which does not exist for them.
func giveDevices(p program) (err error) {
	if p.Users == nil {
		return nil
	}
	if err := openDev(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, readOnly("/dev", 0)) }()
	all, err := os.ReadDir("/dev")
	if err != nil {
		return err
	}
	root := int(p.outside(0))
	errs := []error{os.Lchown("/dev", root, root)}
	for _, e := range all {
		errs = append(errs, os.Lchown(filepath.Join("/dev", e.Name()), root, root))
	}
	return errors.Join(errs...)
}

// sendHold sends a hold, with the network of the host if its program has that.
func sendHold(c *net.UnixConn, q request) error {
	if q.Run == nil {
		return send(c, q, -1)
	}
	fd, err := hostNetwork(*q.Run)
	if err != nil {
		return err
	}
	if fd >= 0 {
		defer unix.Close(fd)
	}
	return send(c, q, fd)
}

// hostNetwork opens the network of this host for a program that is to have it. -1: it has its own.
func hostNetwork(p program) (int, error) {
	if !p.HostNet {
		return -1, nil
	}
	ns, err := netns.Get()
	if err != nil {
		return -1, fmt.Errorf("take the network of the host: %w", err)
	}
	return int(ns), nil
}

// keepNetwork keeps the network that came with a program.
func keepNetwork(s *shim, f *os.File) {
	if f == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.network != nil {
		s.network.Close()
	}
	s.network = f
}

// enterNetwork makes this thread a member of a network. Nil: it stays.
func enterNetwork(network *os.File) error {
	if network == nil {
		return nil
	}
	if err := unix.Setns(int(network.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter the network of the host: %w", err)
	}
	return nil
}
