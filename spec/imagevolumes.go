package spec

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"pando.run/pando"
)

const volumeWord = "volumes."

// noMount are the folders of which a program needs some, and never all in another form.
var noMount = []string{"/", "/etc", "/usr"}

// instanceFolders are folders of the instance over which a spec mounts nothing.
var instanceFolders = []string{"/proc", "/sys", "/dev", "/run/pando", "/run/secrets",
	pando.ConfigsFolder}

// volumesFromImage makes each VOLUME of an image a volume of the service that outlives its instances,
// where the spec mounts nothing there. The name comes from the path. A service of several copies
// keeps none: volumes would bind all of them to one host.
func volumesFromImage(s *pando.Spec, paths []string, gave func(string)) {
	if !keepsImageVolumes(*s) {
		return
	}
	s.Volumes = slices.Clone(s.Volumes)
	for _, at := range unmounted(*s, paths) {
		v := pando.Volume{Name: imageVolumeName(at), Path: at}
		taken := slices.ContainsFunc(s.Volumes,
			func(o pando.Volume) bool { return o.Name == v.Name })
		if taken || len(s.Volumes) == pando.VolumesMax {
			continue // LostVolumes names it
		}
		s.Volumes = append(s.Volumes, v)
		gave(volumeWord + v.Name)
	}
	if len(s.Volumes) == 0 {
		s.Volumes = nil
	}
}

// keepsImageVolumes reports whether the instances of a spec can have volumes of their own.
func keepsImageVolumes(s pando.Spec) bool {
	one := s.Ordinals() || s.Stateful() || s.WithDefaults().Scale.Max <= 1
	return one && !s.IsJob() && !s.IsVM() && s.Rollout.Order != pando.StartFirst &&
		(s.Place.Spread == "" || s.Stateful())
}

// LostVolumes returns what an image keeps as volumes and a spec does not, as a warning. "": nothing.
// A run of a job keeps nothing by its nature.
func LostVolumes(s pando.Spec, c pando.ImageConfig) string {
	lost := unmounted(s, c.Volumes)
	if len(lost) == 0 || s.IsJob() {
		return ""
	}
	return fmt.Sprintf("the image keeps %s as a volume, and the spec does not: its files are lost at each "+
		"restart; `volumes: [data:%s]` keeps them, or data:%[2]s:shared for several instances",
		pando.Few(lost), lost[0])
}

// unmounted returns the paths at which a spec mounts nothing, and at which it may.
func unmounted(s pando.Spec, paths []string) (out []string) {
	var mounted []string
	for _, v := range s.Volumes {
		mounted = append(mounted, v.Path)
	}
	for _, f := range s.Binds() {
		mounted = append(mounted, f.At)
	}
	for _, t := range s.Tmpfs {
		mounted = append(mounted, t.Path)
	}
	for _, at := range paths {
		at = path.Clean("/" + at)
		covers := func(o string) bool { return strings.HasPrefix(at+"/", o+"/") }
		own := func(o string) bool { return covers(o) || strings.HasPrefix(o, at+"/") }
		if !slices.ContainsFunc(mounted, covers) && !slices.ContainsFunc(instanceFolders, own) &&
			!slices.Contains(noMount, at) && !slices.Contains(out, at) && !strings.ContainsAny(at, ":\x00") {
			out = append(out, at)
		}
	}
	return out
}

// imageVolumeName returns the name of the volume at a path of an image, such as image-var-lib-mysql.
func imageVolumeName(at string) string {
	name := []byte("image" + strings.ToLower(at))
	for n, c := range name {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '.' && c != '_' {
			name[n] = '-'
		}
	}
	const most = 63 // of a name; the end of a path says more than its beginning
	if len(name) > most {
		name = append([]byte("image-"), name[len(name)-most+len("image-"):]...)
	}
	return strings.TrimRight(string(name), "-_.")
}
