package process

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// binds returns the mounts of folders and files of the host that an instance sees at a path of its
// own. Links are resolved here, so that the shim follows none. Hidden folders are refused.
func binds(folders []pando.Folder, hidden []string) (out []mounted, err error) {
	for _, f := range folders {
		from, err := filepath.EvalSymlinks(f.Path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("folders: %s is missing on this host: make it on each host, or choose "+
				"hosts that have it with `place: {only: …}`", f.Path)
		}
		if err != nil {
			return nil, fmt.Errorf("folders: %w", err)
		}
		for _, dir := range hidden {
			if below(dir, from) || below(from, dir) {
				return nil, fmt.Errorf("%w: folders: %s is or contains the data of Pando; name "+
					"another folder", pando.ErrRefused, f.Path)
			}
		}
		out = append(out, mounted{From: from, At: f.At, Write: f.Write, Host: true})
	}
	return out, nil
}

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
