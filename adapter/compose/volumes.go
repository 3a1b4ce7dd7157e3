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
		case "size", "mode", "noexec":
			if err := spec.TmpfsOption(&t, option); err != nil {
				c.deny(c.at("tmpfs"), "%s: option %s: %v", path, option, err)
			}
		case "", "rw", "exec", "nosuid", "nodev":
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
	}
	declared, path := c.project.Volumes[v.Source], []string{"volumes", v.Source}
	if why := ownFolder("", pathpkg.Clean(v.Target)); why != "" {
		c.deny(c.at("volumes"), "%s: %s", v.Target, why)
		return
	}
	switch {
	case bool(declared.External):
		c.warn(path, "is external: Pando makes an empty volume; copy the files of %s into it before "+
			"traffic comes", declared.Name)
	case c.bound(v, declared):
		return
	case declared.Driver != "" && declared.Driver != "local" || hasOption(declared.DriverOpts):
		c.deny(path, "volumes are folders of the host: mount the driver's storage on the host, and "+
			"give its path instead, such as /mnt/%s", v.Source)
	}
	out := pando.Volume{Name: name, Path: pathpkg.Clean(v.Target), ReadOnly: v.ReadOnly,
		Shared: v.Source != "" && c.out.Scale.Max > 1}
	if lender, ok := c.lenders[v.Source]; ok {
		out.Shared = true
		if of := c.names[lender]; of != c.out.Name {
			out.Of = of
		}
	}
	c.out.Volumes = append(c.out.Volumes, out)
}

// hasOption reports whether an option of a driver has a value. Some files have only variables there.
func hasOption(all types.Options) bool {
	for _, v := range all {
		if strings.TrimSpace(v) != "" {
			return true
		}
	}
	return false
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

// lent returns the volumes that several services have, each with the service to which it belongs.
// Services that share volumes run on one host, that of the first of them to start.
func (c *converter) lent() map[string]string {
	users, first := map[string][]string{}, map[string]string{}
	for _, name := range c.startOrder() {
		first[name] = name
		for _, v := range c.project.Services[name].Volumes {
			if v.Type == types.VolumeTypeVolume && v.Source != "" &&
				!slices.Contains(users[v.Source], name) {
				users[v.Source] = append(users[v.Source], name)
			}
		}
	}
	var of func(name string) string
	of = func(name string) string {
		if first[name] != name {
			first[name] = of(first[name])
		}
		return first[name]
	}
	order := c.startOrder()
	for _, source := range sortedKeys(users) {
		for _, name := range users[source][1:] {
			a, b := of(users[source][0]), of(name)
			if slices.Index(order, b) < slices.Index(order, a) {
				a, b = b, a
			}
			first[b] = a
		}
	}
	out := map[string]string{}
	for source, all := range users {
		if len(all) > 1 {
			out[source] = of(all[0])
		}
	}
	return out
}

// startOrder returns the enabled services, each after those that it needs. Services without
// instances come last: they have no host.
func (c *converter) startOrder() []string {
	var out, none []string
	done := map[string]bool{}
	var visit func(name string)
	visit = func(name string) {
		s, there := c.project.Services[name]
		if done[name] || !there {
			return
		}
		done[name] = true
		for _, needed := range sortedKeys(s.DependsOn) {
			visit(needed)
		}
		if s.GetScale() == 0 {
			none = append(none, name)
		} else {
			out = append(out, name)
		}
	}
	for _, name := range c.project.ServiceNames() {
		visit(name)
	}
	return append(out, none...)
}

// ownFolder returns why a folder of the host, or a volume, cannot be at a place, with the cure. "": it
// can.
func ownFolder(from, at string) string {
	within := func(dir, path string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }
	switch {
	case within("/dev/shm", at):
		return "it is the instance's own memory: `shm_size` sets its size"
	case within("/dev", from):
		return "name a device in `devices`: [" + from + "]"
	case from == "/" || within("/proc", from) || within("/sys", from):
		return "it shows the programs of the whole host: leave it out if the program runs without it " +
			"(`pando stats`, and the metrics of each host), or run it without Pando"
	}
	for _, own := range []string{"/proc", "/sys", "/dev", "/run/pando", "/run/secrets"} {
		if within(own, at) {
			return own + " is the instance's own: choose another path"
		}
	}
	return ""
}

// folder converts a folder or a file of the host.
func (c mounts) folder(v types.ServiceVolumeConfig) {
	v.Source, v.Target = pathpkg.Clean(v.Source), pathpkg.Clean(v.Target)
	switch why := ownFolder(v.Source, v.Target); {
	case v.Source == sharedMemory && v.Target == sharedMemory:
		c.warn(c.at("volumes"), "%s of the host is left out: each instance has its own, and `shm_size` "+
			"sets its size", v.Source)
	case strings.HasSuffix(v.Source, "/docker.sock"):
		c.deny(c.at("volumes"), "%s: it controls the host: run this program without Pando",
			v.Source)
	case why != "":
		c.deny(c.at("volumes"), "%s: %s", v.Source, why)
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
