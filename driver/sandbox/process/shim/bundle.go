package shim

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/wire"
)

// showBundle mounts a bundle at its path of the view.
func showBundle(b *wire.Bundle, tree int) error {
	if b == nil {
		return nil
	}
	err := os.MkdirAll(b.Path, 0o755)
	if err == nil {
		err = unix.MoveMount(tree, "", unix.AT_FDCWD, b.Path, unix.MOVE_MOUNT_F_EMPTY_PATH)
	}
	if err != nil {
		return fmt.Errorf("show the bundle at %s: %w", b.Path, err)
	}
	return nil
}

// takeBundle returns a detached, read-only mount of a bundle, or -1 for none. The folder of the
// layers is a folder of the host, so this happens before the shim leaves the host's root.
func (s *shim) takeBundle(b *wire.Bundle) (int, error) {
	if b == nil {
		return -1, nil
	}
	if s.entrance.layers < 0 {
		return -1, fmt.Errorf("%w: this sandbox was made without bundles", pando.ErrUnsupported)
	}
	tree, err := unix.OpenTree(s.entrance.layers, b.Layer,
		unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return -1, fmt.Errorf("take the bundle: %w", err)
	}
	attr := &unix.MountAttr{
		Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_RDONLY,
	}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, attr); err != nil {
		unix.Close(tree)
		return -1, fmt.Errorf("make the bundle read-only: %w", err)
	}
	return tree, nil
}
