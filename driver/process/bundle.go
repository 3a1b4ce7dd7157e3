package process

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// bundled is the folder of a bundle in the view of an instance.
type bundled struct {
	Layer string `json:"layer"` // its name in the folder of the layers
	Path  string `json:"path"`  // of the view
}

// inBundle shows a program its bundle, and the host's paths that it needs beside it. A folder of
// the host at the path of the bundle stays out of the view.
func (d *Driver) inBundle(p *program, spec pando.Spec) error {
	if d.Images == nil {
		return fmt.Errorf("%w: this host keeps no bundles", pando.ErrUnsupported)
	}
	files, err := d.Images.Root(spec.Bundle.Digest, "")
	if err != nil {
		return err
	}
	if len(files.Layers) != 1 {
		return fmt.Errorf("%w: a bundle of %d layers", pando.ErrInvalid, len(files.Layers))
	}
	p.Bundle = &bundled{Layer: files.Layers[0], Path: spec.Bundle.Folder}
	for _, s := range named(spec, p.Env) {
		if !below(p.Bundle.Path, s.Path) {
			p.Show = append(p.Show, s)
		}
	}
	root, err := os.OpenRoot(filepath.Join(d.Layers, p.Bundle.Layer))
	if err != nil {
		return fmt.Errorf("open the bundle: %w", err)
	}
	defer root.Close()
	p.Show = append(p.Show, p.Bundle.interpreter(root, p)...)
	if !below(p.Bundle.Path, p.Dir) {
		return hasFolder(os.Stat, p.Dir)
	}
	return hasFolder(root.Stat, p.Bundle.local(p.Dir))
}

// local returns a path of the view below the bundle as a path below the bundle's folder.
func (b *bundled) local(path string) string {
	rest, err := filepath.Rel(b.Path, path)
	if err != nil {
		return "."
	}
	return rest
}

// interpreter returns the folders of the interpreter of a script in the bundle, if the system does
// not have it.
func (b *bundled) interpreter(root *os.Root, p *program) []shown {
	path := p.Argv[0]
	if !filepath.IsAbs(path) {
		path = filepath.Join(p.Dir, path)
	}
	if !below(b.Path, path) {
		return nil
	}
	f, err := root.Open(b.local(path))
	if err != nil {
		return nil // the command is a name of PATH, or the shim reports it
	}
	defer f.Close()
	by := interpreterIn(f)
	if !filepath.IsAbs(by) || below(b.Path, by) {
		return nil
	}
	folders := []string{prefix(by)}
	if real, err := filepath.EvalSymlinks(by); err == nil {
		folders = append(folders, prefix(real))
	}
	folders = slices.DeleteFunc(folders, func(dir string) bool {
		return visible(dir) || ownFolder(dir)
	})
	var out []shown
	for _, dir := range folders {
		out = append(out, shown{Path: dir})
	}
	return out
}

// hasFolder returns an error if the working directory of a program does not exist.
func hasFolder(stat func(string) (os.FileInfo, error), dir string) error {
	if info, err := stat(dir); err != nil || !info.IsDir() {
		return fmt.Errorf("%w: there is no folder %s; check `working_dir` in the spec",
			pando.ErrInvalid, dir)
	}
	return nil
}

// takeBundle returns a detached, read-only mount of a bundle, or -1 for none. The folder of the
// layers is a folder of the host, so this happens before the shim leaves the host's root.
func (s *shim) takeBundle(b *bundled) (int, error) {
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

// show mounts the bundle at its path of the view.
func (b *bundled) show(tree int) error {
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
