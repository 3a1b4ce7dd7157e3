package compose

import (
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"

	"pando.run/pando"
	"pando.run/pando/spec"
)

// instancesOwn are files of the host that images ask for and that each instance has already.
var instancesOwn = []string{"/etc/localtime", "/etc/timezone", "/etc/resolv.conf", "/etc/hosts"}

// volumes converts the volumes of a service, its folders in memory and `read_only`.
func (c *converter) volumes(s types.ServiceConfig, out *pando.Spec, at func(...string) []string) {
	out.ReadOnly = s.ReadOnly
	for _, path := range s.Tmpfs {
		c.memory(path, out, at)
	}
	for _, v := range s.Volumes {
		switch v.Type {
		case types.VolumeTypeVolume:
			c.volume(s.Name, v, out, at)
		case types.VolumeTypeBind:
			c.folder(v, out, at)
		case types.VolumeTypeTmpfs:
			t := pando.Tmpfs{Path: v.Target}
			if v.Tmpfs != nil {
				t.Bytes, t.Mode = int64(v.Tmpfs.Size), v.Tmpfs.Mode
			}
			out.Tmpfs = append(out.Tmpfs, t)
		default:
			c.deny(at("volumes"), "%s: a spec has no volume of type %s: use a named volume", v.Target,
				v.Type)
		}
	}
}

// memory converts an element of `tmpfs`: PATH or PATH:OPTIONS. Every instance has a /tmp.
func (c *converter) memory(text string, out *pando.Spec, at func(...string) []string) {
	path, options, _ := strings.Cut(text, ":")
	t := pando.Tmpfs{Path: path}
	for option := range strings.SplitSeq(options, ",") {
		switch word, _, _ := strings.Cut(option, "="); word {
		case "size", "mode":
			if err := spec.TmpfsOption(&t, option); err != nil {
				c.deny(at("tmpfs"), "%s: option %s: %v", path, option, err)
			}
		case "", "rw", "noexec", "exec", "nosuid", "suid", "nodev", "dev":
		default:
			c.warn(at("tmpfs"), "%s: option %s is left out", path, option)
		}
	}
	if path == "/tmp" && t.Bytes == 0 && t.Mode == 0 {
		return
	}
	out.Tmpfs = append(out.Tmpfs, t)
}

// volume converts a named or anonymous volume. Replicas share a volume, as in Compose. A single
// instance has it for itself, so that no two ever write to it.
func (c *converter) volume(
	service string, v types.ServiceVolumeConfig, out *pando.Spec, at func(...string) []string,
) {
	name := strings.ToLower(v.Source)
	if name == "" {
		name = strings.ToLower(strings.ReplaceAll(strings.Trim(v.Target, "/"), "/", "-"))
	} else if others := c.usersOf(v.Source, service); len(others) > 0 {
		c.deny(at("volumes"), "volume %s is also of %s: a volume belongs to one service: give both a "+
			"folder of the host, such as /srv/%s:%s", v.Source, strings.Join(others, " and "), v.Source,
			v.Target)
	}
	declared, path := c.project.Volumes[v.Source], []string{"volumes", v.Source}
	switch {
	case bool(declared.External):
		c.warn(path, "is external: Pando makes an empty volume; copy the files of %s into it before "+
			"traffic comes", declared.Name)
	case declared.Driver != "" && declared.Driver != "local" || len(declared.DriverOpts) > 0:
		c.deny(path, "volumes are folders of the host: mount the driver's storage on the host, and "+
			"give its path instead, such as /mnt/%s", v.Source)
	}
	if v.Volume != nil && v.Volume.Subpath != "" {
		c.deny(at("volumes"), "%s: a volume is mounted whole: drop subpath", v.Target)
	}
	out.Volumes = append(out.Volumes, pando.Volume{Name: name, Path: v.Target, ReadOnly: v.ReadOnly,
		Shared: v.Source != "" && out.Scale.Max > 1})
}

// usersOf returns the other services that mount a named volume.
func (c *converter) usersOf(volume, service string) (out []string) {
	for _, name := range c.project.ServiceNames() {
		uses := func(v types.ServiceVolumeConfig) bool {
			return v.Type == types.VolumeTypeVolume && v.Source == volume
		}
		if name != service && slices.ContainsFunc(c.project.Services[name].Volumes, uses) {
			out = append(out, name)
		}
	}
	return out
}

// folder converts a folder or a file of the host.
func (c *converter) folder(
	v types.ServiceVolumeConfig, out *pando.Spec, at func(...string) []string,
) {
	switch {
	case strings.HasSuffix(v.Source, "/docker.sock"):
		c.deny(at("volumes"), "%s: no instance commands the host: run this program without Pando",
			v.Source)
	case slices.Contains(instancesOwn, v.Target):
		c.warn(at("volumes"), "%s is left out: each instance has it", v.Target)
	default:
		if strings.HasPrefix(v.Source, c.dir+"/") {
			c.warn(at("volumes"), "%s: each host shows its own %s: copy it to every host, or choose one "+
				"host with place", v.Target, v.Source)
		}
		out.Folders = append(out.Folders, pando.Folder{Path: v.Source, At: v.Target,
			Write: !v.ReadOnly})
	}
}
