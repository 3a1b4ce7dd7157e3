package shim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/wire"
)

// giveDevices makes root of the program's users the owner of the sandbox's own /dev. It was made
// ahead of need, by root of the host, which does not exist for them.
func giveDevices(p wire.Program) (err error) {
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
	root := int(p.IDOutside(0))
	errs := []error{os.Lchown("/dev", root, root)}
	for _, e := range all {
		errs = append(errs, os.Lchown(filepath.Join("/dev", e.Name()), root, root))
	}
	return errors.Join(errs...)
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
