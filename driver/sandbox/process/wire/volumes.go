package wire

import (
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Volume is a volume of an instance, or a folder of the host at another path.
type Volume struct {
	From   string `json:"from"` // of the host
	At     string `json:"at"`
	Shared bool   `json:"shared,omitempty"`
	Write  bool   `json:"write,omitempty"`
	Peek   bool   `json:"peek,omitempty"` // it is only read, beside the instance that has it
	Host   bool   `json:"host,omitempty"` // a folder or file of the host, which nothing locks
}

// Cure names what maps no users, and what helps.
func (v Volume) Cure() string {
	if v.Host {
		return fmt.Sprintf("%s maps no users: choose a folder on ext4, XFS or btrfs, use a named volume "+
			"in its place, or set `userns_mode: host` in the spec", v.From)
	}
	return "volumes maps no users; move `--data-dir` to ext4, XFS or btrfs, or set `userns_mode: host` " +
		"in the spec"
}

// HoldVolume opens a volume below a root and locks it for as long as the descriptor is open. A folder or
// file of the host is only opened, and no link on its path is followed.
func HoldVolume(root int, v Volume, resolve uint64) (int, error) {
	if v.Host {
		return unix.Openat2(root, v.From, &unix.OpenHow{
			Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_NO_SYMLINKS | resolve,
		})
	}
	fd, err := unix.Openat2(root, v.From, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_MAGICLINKS | resolve,
	})
	if err != nil {
		return -1, err
	}
	if v.Peek {
		return fd, nil
	}
	lock := unix.LOCK_EX
	if v.Shared {
		lock = unix.LOCK_SH
	}
	if err := unix.Flock(fd, lock|unix.LOCK_NB); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// HostPath is a path of the host that the program of one instance sees.
type HostPath struct {
	Path  string `json:"path"`
	Write bool   `json:"write,omitempty"`
}

// Bundle is the folder of a bundle in the view of an instance.
type Bundle struct {
	Layer string `json:"layer"` // its name in the folder of the layers
	Path  string `json:"path"`  // of the view
}

// Local returns a path of the view below the bundle as a path below the bundle's folder.
func (b *Bundle) Local(path string) string {
	rest, err := filepath.Rel(b.Path, path)
	if err != nil {
		return "."
	}
	return rest
}

// FreshMark is the extended attribute of a volume that has not been filled.
const FreshMark = "trusted.pando.fresh"
