package spec

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"pando.run/pando"
)

var boolKind = kind{
	schema: map[string]any{"type": "boolean"},
	read: func(r *reader, n ast.Node, where string, take func(any)) {
		b, ok := n.(*ast.BoolNode)
		if !ok {
			r.wrong(n, where, "true or false")
			return
		}
		take(b.Value)
	},
}

const volumePattern = `^[a-z0-9]([a-z0-9_.-]{0,61}[a-z0-9])?$`

var volumeName = regexp.MustCompile(volumePattern)

var volumesKind = listKind(`["data:/var/lib/valkey:size=20g", "media:/srv/media:shared"]`,
	map[string]any{"type": "string", "pattern": `^[^\x00:]+:/[^\x00:]*(:[a-z0-9,=-]+)?$`}, parseVolume)

func parseVolume(s string) (pando.Volume, error) {
	name, rest, two := strings.Cut(s, ":")
	at, options, _ := strings.Cut(rest, ":")
	v := pando.Volume{Name: name, Path: at}
	if strings.ContainsAny(name, "/~") || name == "." || name == ".." {
		return v, fmt.Errorf("%q: a folder of the host is no volume: name it in `folders`, such as "+
			"folders: [/srv/data:rw]", s)
	}
	if !two || at == "" {
		return v, fmt.Errorf("%q: want NAME:PATH, such as data:/var/lib/valkey", s)
	}
	for option := range strings.SplitSeq(options, ",") {
		switch option {
		case "", "rw":
		case "ro":
			v.ReadOnly = true
		case "shared":
			v.Shared = true
		default:
			size, sized := strings.CutPrefix(option, "size=")
			of, lent := strings.CutPrefix(option, "of=")
			var err error
			switch {
			case sized:
				v.Bytes, err = parseBytes(size)
			case lent:
				v.Of, v.Shared = pando.ServiceName(of), true
			default:
				err = fmt.Errorf("want ro, rw, shared, size=10g or of=SERVICE")
			}
			if err != nil {
				return v, fmt.Errorf("%q: option %q: %w", s, option, err)
			}
		}
	}
	return v, nil
}

func volumeTexts(all []pando.Volume) []string {
	var out []string
	for _, v := range all {
		var options []string
		if v.ReadOnly {
			options = append(options, "ro")
		}
		switch {
		case v.Of != "":
			options = append(options, "of="+string(v.Of))
		case v.Shared:
			options = append(options, "shared")
		}
		if v.Bytes > 0 {
			options = append(options, fmt.Sprintf("size=%d", v.Bytes))
		}
		text := v.Name + ":" + v.Path
		if options != nil {
			text += ":" + strings.Join(options, ",")
		}
		out = append(out, text)
	}
	return out
}

var tmpfsKind = listKind(`["/var/cache/web:size=16m"]`,
	map[string]any{"type": "string", "pattern": `^/[^\x00:]*(:[a-z0-9=,]+)?$`}, parseTmpfs)

func parseTmpfs(s string) (pando.Tmpfs, error) {
	at, options, _ := strings.Cut(s, ":")
	t := pando.Tmpfs{Path: at}
	for option := range strings.SplitSeq(options, ",") {
		if err := TmpfsOption(&t, option); option != "" && err != nil {
			return t, fmt.Errorf("%q: option %q: %w", s, option, err)
		}
	}
	return t, nil
}

// TmpfsOption reads an option of a folder in memory, such as size=64m, mode=1777 or noexec.
func TmpfsOption(t *pando.Tmpfs, option string) (err error) {
	switch word, value, _ := strings.Cut(option, "="); word {
	case "size":
		t.Bytes, err = parseBytes(value)
	case "mode":
		var n uint64
		n, err = strconv.ParseUint(value, 8, 12)
		t.Mode = uint32(n)
	case "noexec":
		t.NoExec = true
	default:
		err = fmt.Errorf("want size, mode and noexec, such as size=64m,mode=1777,noexec")
	}
	return err
}

func parseBytes(s string) (int64, error) {
	s = strings.ToLower(s) // as mount does
	digits := strings.TrimRight(s, "kmg")
	n, err := strconv.ParseInt(digits, 10, 40)
	shift, ok := map[string]int{"": 0, "k": 10, "m": 20, "g": 30}[s[len(digits):]]
	if err != nil || !ok || n < 1 || n > 1<<60>>shift {
		return 0, fmt.Errorf("want a size such as 512k, 64m or 1g")
	}
	return n << shift, nil
}

func tmpfsTexts(all []pando.Tmpfs) []string {
	var out []string
	for _, t := range all {
		var options []string
		if t.Bytes > 0 {
			options = append(options, fmt.Sprintf("size=%d", t.Bytes))
		}
		if t.Mode > 0 {
			options = append(options, fmt.Sprintf("mode=%o", t.Mode))
		}
		if t.NoExec {
			options = append(options, "noexec")
		}
		text := t.Path
		if options != nil {
			text += ":" + strings.Join(options, ",")
		}
		out = append(out, text)
	}
	return out
}

// memoryFolders are folders of the instance that a spec may replace by one in memory, of another
// size or mode.
var memoryFolders = []string{"/run", "/dev/shm"}

// volumes checks the volumes of a spec and its folders in memory.
func (c *checks) volumes(s pando.Spec) {
	seen := map[string]string{}
	mount := func(where, at string, memory bool) {
		c.text(where, at)
		c.that(path.IsAbs(at) && path.Clean(at) == at, "%s: %q is no absolute path", where, at)
		for _, own := range instanceFolders {
			if memory && slices.Contains(memoryFolders, at) {
				continue
			}
			c.that(at != own && !strings.HasPrefix(at, own+"/") && !strings.HasPrefix(own, at+"/"),
				"%s: %s is the instance's own", where, own)
		}
		c.that(!slices.Contains(noMount, at),
			"%s: want the folder below %s that the program needs", where, at)
		c.that(seen[at] == "", "%s: %s is mounted already, by %s", where, at, seen[at])
		seen[at] = where
	}
	c.that(len(s.Volumes) <= pando.VolumesMax, "volumes: more than %d", pando.VolumesMax)
	c.that(len(s.Tmpfs) <= pando.VolumesMax, "tmpfs: more than %d", pando.VolumesMax)
	first := map[string]pando.Volume{}
	for n, v := range s.Volumes {
		where := fmt.Sprintf("volumes[%d]", n)
		c.that(volumeName.MatchString(v.Name), "%s: %q: want a name of letters in lower case, digits, "+
			"'_', '-' and '.'", where, v.Name)
		was, twice := first[v.Name]
		c.that(!twice || was.Shared == v.Shared, "%s: volume %s is shared in one place alone", where,
			v.Name)
		c.that(!twice || was.Bytes == v.Bytes, "%s: volume %s has two sizes", where, v.Name)
		c.that(v.Bytes >= 0 && v.Bytes <= pando.VolumeBytesMax, "%s: the size is impossible", where)
		first[v.Name] = v
		mount(where, v.Path, false)
		if v.Of != "" {
			c.also(pando.CheckLabel("service", string(v.Of)))
			c.that(v.Shared && v.Of != s.Name, "%s: of=%s: want a volume of another service, which both share",
				where, v.Of)
		}
	}
	for n, f := range s.Folders {
		if f.At != "" {
			mount(fmt.Sprintf("folders[%d]", n), f.At, false)
		}
	}
	for n, t := range s.Tmpfs {
		where := fmt.Sprintf("tmpfs[%d]", n)
		mount(where, t.Path, true)
		c.that(t.Bytes >= 0 && t.Mode <= 0o7777, "%s: the size or the mode is impossible", where)
	}
	for _, why := range volumeConflicts(s) {
		c.that(false, "%s: %s", why.path, why.text)
	}
}

// volumeConflicts returns the keys of a spec that contradict its volumes.
func volumeConflicts(s pando.Spec) (out []conflict) {
	if len(s.Volumes) > 0 && s.Place.Spread != "" && !s.Stateful() {
		out = append(out, conflict{"place.spread", "the service has volumes, which are on one host: " +
			"drop spread or volumes, or write kind: stateful"})
	}
	if s.Ordinals() && len(s.Endpoints) == 0 && s.Rollout.Order == pando.StartFirst {
		out = append(out, conflict{"rollout.order", "two instances cannot have one volume: drop " +
			"order, or give the volume the option shared"})
	}
	if s.Ordinals() && s.Scale.Warm > 0 {
		out = append(out, conflict{"scale.warm", "an instance in reserve would keep a volume from " +
			"the others: drop warm, or give the volume the option shared"})
	}
	return out
}
