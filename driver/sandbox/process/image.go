package process

import (
	"fmt"
	"slices"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/wire"
)

// claim returns a slot in which the program of a spec can start. An older shim has no
// images, bundles, volumes, folders at other paths or user namespaces: its slot is replaced.
func (d *Driver) claim(spec pando.Spec) (*slot, error) {
	s, err := d.pool.claim()
	mounts := len(spec.Volumes) > 0 || len(spec.Tmpfs) > 0 || spec.ReadOnly
	binds := len(spec.Binds()) > 0
	if err != nil || (spec.Image.Digest == "" || s.Layers) &&
		(spec.Bundle.Digest == "" || s.Bundles) && (!mounts || s.Mounts) && (!binds || s.Binds) &&
		(len(spec.Configs)+len(spec.ExtraHosts) == 0 || s.Configs) && s.Users &&
		(len(spec.Grants) == 0 || s.Grants) && (spec.Runtime == "" || s.Runtimes) {
		return s, err
	}
	d.scrap(s)
	return d.pool.make()
}

// inImage gives a program the files and the user of its image.
func (d *Driver) inImage(p *wire.Program, spec pando.Spec, env map[string]string) error {
	if d.Images == nil {
		return fmt.Errorf("%w: this host keeps no images", pando.ErrUnsupported)
	}
	r, err := d.Images.Root(spec.Image.Digest, spec.User)
	if err != nil {
		return err
	}
	p.Layers, p.UID, p.GID, p.Owners = r.Layers, r.UID, r.GID, r.Owners
	p.Groups = r.Groups
	for _, name := range spec.GroupAdd {
		g, err := d.Images.Root(spec.Image.Digest, "0:"+name)
		if err != nil {
			return fmt.Errorf("group_add: %w", err)
		}
		if !slices.Contains(p.Groups, g.GID) {
			p.Groups = append(slices.Clip(p.Groups), g.GID)
		}
	}
	// Like other runtimes, its own group is one of its groups: programs look for it there.
	if len(p.Groups) > 0 && !slices.Contains(p.Groups, p.GID) {
		p.Groups = append([]uint32{p.GID}, p.Groups...)
	}
	if _, given := spec.Environment["HOME"]; !given && r.Home != "" {
		env["HOME"] = r.Home
	}
	return nil
}
