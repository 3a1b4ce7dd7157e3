package compose

import (
	pathpkg "path"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"

	"pando.run/pando"
	"pando.run/pando/spec"
)

// instancesOwn are files of the host that images ask for and that each instance has already.
var instancesOwn = []string{"/etc/localtime", "/etc/timezone", "/etc/resolv.conf", "/etc/hosts"}

// mounts converts the volumes of a service, its folders in memory and `read_only`.
type mounts struct {
	*converter
	service string
	out     *pando.Spec
	at      func(words ...string) []string
}

func (c mounts) convert(s types.ServiceConfig) {
	c.out.ReadOnly = s.ReadOnly
	for _, path := range s.Tmpfs {
		c.memory(path)
	}
	if s.ShmSize > 0 && !slices.ContainsFunc(c.out.Tmpfs, inShm) {
		c.out.Tmpfs = append(c.out.Tmpfs, pando.Tmpfs{Path: sharedMemory, Bytes: int64(s.ShmSize)})
	}
	for _, v := range s.Volumes {
		switch v.Type {
		case types.VolumeTypeVolume:
			c.volume(v)
		case types.VolumeTypeBind:
			c.folder(v)
		case types.VolumeTypeTmpfs:
			t := pando.Tmpfs{Path: v.Target}
			if v.Tmpfs != nil {
				t.Bytes, t.Mode = int64(v.Tmpfs.Size), v.Tmpfs.Mode
			}
			c.out.Tmpfs = append(c.out.Tmpfs, t)
		default:
			c.deny(c.at("volumes"), "%s: a spec has no volume of type %s: use a named volume", v.Target,
				v.Type)
		}
	}
}

const sharedMemory = "/dev/shm"

func inShm(t pando.Tmpfs) bool { return t.Path == sharedMemory }

// memory converts an element of `tmpfs`: PATH or PATH:OPTIONS.
func (c mounts) memory(text string) {
	path, options, _ := strings.Cut(text, ":")
	t := pando.Tmpfs{Path: pathpkg.Clean(path)}
	for option := range strings.SplitSeq(options, ",") {
		switch word, _, _ := strings.Cut(option, "="); word {
		case "size", "mode":
			if err := spec.TmpfsOption(&t, option); err != nil {
				c.deny(c.at("tmpfs"), "%s: option %s: %v", path, option, err)
			}
		case "", "rw", "noexec", "exec", "nosuid", "suid", "nodev", "dev":
		default:
			c.warn(c.at("tmpfs"), "%s: option %s is left out", path, option)
		}
	}
	c.out.Tmpfs = append(c.out.Tmpfs, t)
}

// volume converts a named or anonymous volume. Replicas share a volume, as in Compose. A single
// instance has it for itself, so that no two ever write to it.
func (c mounts) volume(v types.ServiceVolumeConfig) {
	name := strings.ToLower(v.Source)
	if name == "" {
		name = strings.ToLower(strings.ReplaceAll(strings.Trim(v.Target, "/"), "/", "-"))
	} else if others := c.usersOf(v.Source); len(others) > 0 {
		c.deny(c.at("volumes"), "volume %s is also of %s: a volume belongs to one service: give both a "+
			"folder of the host, such as /srv/%s:%s", v.Source, strings.Join(others, " and "), v.Source,
			v.Target)
	}
	declared, path := c.project.Volumes[v.Source], []string{"volumes", v.Source}
	switch {
	case bool(declared.External):
		c.warn(path, "is external: Pando makes an empty volume; copy the files of %s into it before "+
			"traffic comes", declared.Name)
	case c.bound(v, declared):
		return
	case declared.Driver != "" && declared.Driver != "local" || len(declared.DriverOpts) > 0:
		c.deny(path, "volumes are folders of the host: mount the driver's storage on the host, and "+
			"give its path instead, such as /mnt/%s", v.Source)
	}
	c.out.Volumes = append(c.out.Volumes, pando.Volume{
		Name: name, Path: v.Target, ReadOnly: v.ReadOnly,
		Shared: v.Source != "" && c.out.Scale.Max > 1})
}

// bound converts a volume that is a folder of the host by its driver's options: type none, o bind.
func (c mounts) bound(v types.ServiceVolumeConfig, declared types.VolumeConfig) bool {
	from := declared.DriverOpts["device"]
	options := strings.Split(declared.DriverOpts["o"], ",")
	if declared.Driver != "" && declared.Driver != "local" || from == "" ||
		!slices.Contains(options, "bind") && !slices.Contains(options, "rbind") {
		return false
	}
	c.folder(types.ServiceVolumeConfig{Source: absolute(c.dir, from), Target: v.Target,
		ReadOnly: v.ReadOnly || slices.Contains(options, "ro")})
	return true
}

// usersOf returns the other services that mount a named volume.
func (c mounts) usersOf(volume string) (out []string) {
	for _, name := range c.project.ServiceNames() {
		uses := func(v types.ServiceVolumeConfig) bool {
			return v.Type == types.VolumeTypeVolume && v.Source == volume
		}
		if name != c.service && slices.ContainsFunc(c.project.Services[name].Volumes, uses) {
			out = append(out, name)
		}
	}
	return out
}

// folder converts a folder or a file of the host.
func (c mounts) folder(v types.ServiceVolumeConfig) {
	switch {
	case strings.HasSuffix(v.Source, "/docker.sock"):
		c.deny(c.at("volumes"), "%s: it controls the host: run this program without Pando",
			v.Source)
	case slices.Contains(instancesOwn, v.Target):
		c.warn(c.at("volumes"), "%s is left out: each instance has it", v.Target)
	default:
		if strings.HasPrefix(v.Source, c.dir+"/") {
			c.warn(c.at("volumes"), "%s: each host shows its own %s: copy it to every host, or choose one "+
				"host with place", v.Target, v.Source)
		}
		c.out.Folders = append(c.out.Folders, pando.Folder{Path: v.Source, At: v.Target,
			Write: !v.ReadOnly})
	}
}
