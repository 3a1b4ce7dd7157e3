package process

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/view"
	"pando.run/pando/driver/sandbox/process/wire"
)

// inBundle shows a program its bundle, and the host's paths that it needs beside it. A folder of
// the host at the path of the bundle stays out of the view.
func (d *Driver) inBundle(p *wire.Program, spec pando.Spec) error {
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
	p.Bundle = &wire.Bundle{Layer: files.Layers[0], Path: spec.Bundle.Folder}
	for _, s := range named(spec, p.Env) {
		if !view.IsBelow(p.Bundle.Path, s.Path) {
			p.Show = append(p.Show, s)
		}
	}
	root, err := os.OpenRoot(filepath.Join(d.Layers, p.Bundle.Layer))
	if err != nil {
		return fmt.Errorf("open the bundle: %w", err)
	}
	defer root.Close()
	p.Show = append(p.Show, interpretersOf(p.Bundle, root, p)...)
	if view.InVolume(*p, p.Dir) {
		return nil
	}
	if !view.IsBelow(p.Bundle.Path, p.Dir) {
		return hasFolder(os.Stat, p.Dir)
	}
	return hasFolder(root.Stat, p.Bundle.Local(p.Dir))
}

// interpretersOf returns the folders of the interpreter of a script in a bundle, if the system does
// not have it.
func interpretersOf(b *wire.Bundle, root *os.Root, p *wire.Program) []wire.HostPath {
	path := p.Argv[0]
	if !filepath.IsAbs(path) {
		path = filepath.Join(p.Dir, path)
	}
	if !view.IsBelow(b.Path, path) {
		return nil
	}
	f, err := root.Open(b.Local(path))
	if err != nil {
		return nil // the command is a name of PATH, or the shim reports it
	}
	defer f.Close()
	by := view.InterpreterIn(f)
	if !filepath.IsAbs(by) || view.IsBelow(b.Path, by) {
		return nil
	}
	folders := []string{view.PrefixOf(by)}
	if real, err := filepath.EvalSymlinks(by); err == nil {
		folders = append(folders, view.PrefixOf(real))
	}
	folders = slices.DeleteFunc(folders, func(dir string) bool {
		return view.IsVisible(dir) || ownFolder(dir)
	})
	var out []wire.HostPath
	for _, dir := range folders {
		out = append(out, wire.HostPath{Path: dir})
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
