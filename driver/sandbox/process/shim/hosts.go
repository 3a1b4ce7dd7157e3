package shim

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
	"pando.run/pando/driver/sandbox/process/wire"
)

const hostsFile = "/etc/hosts"

// nameMachine gives a program its own /etc/hosts and /etc/hostname below its root, in place of
// those of its image or of the host, and the link /etc/mtab if it has none.
func nameMachine(p wire.Program, top string) error {
	if err := unix.Sethostname([]byte(p.Hostname)); err != nil {
		return fmt.Errorf("name the sandbox: %w", err)
	}
	host := ""
	if p.Layers == nil {
		text, err := os.ReadFile(top + hostsFile)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("read %s: %w", hostsFile, err)
		}
		host = string(text)
	}
	root, err := unix.Open(top+"/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	etc, err := folderIn(root, "etc", p.IDOutside(0))
	if err != nil {
		return err
	}
	defer unix.Close(etc)
	for name, text := range map[string]string{
		"hosts": p.HostsFile(host), "hostname": p.Hostname + "\n",
	} {
		// Of the host's: its own, and again if the command names it.
		for unix.Unmount(top+"/etc/"+name, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) == nil {
		}
		fd, err := ownFile(etc, name, text, p.IDOutside(0))
		if err != nil {
			return fmt.Errorf("write /etc/%s: %w", name, err)
		}
		unix.Close(fd)
	}
	err = unix.Symlinkat("/proc/mounts", etc, "mtab")
	if err != nil && err != unix.EEXIST {
		return fmt.Errorf("make /etc/mtab: %w", err)
	}
	return nil
}

// ownFile makes a file of a folder anew, in place of a file or link there.
func ownFile(dir int, name, text string, owner uint32) (int, error) {
	if err := unix.Unlinkat(dir, name, 0); err != nil && err != unix.ENOENT {
		return -1, err
	}
	return plainFile(dir, name, text, owner)
}
