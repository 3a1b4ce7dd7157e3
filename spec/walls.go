package spec

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"pando.run/pando"
)

// foldersMax bounds the folders of a spec.
const foldersMax = 64

// tooWide are paths with folders that each instance has for itself.
var tooWide = []string{"/", "/etc", "/run", "/tmp", "/usr", "/var", "/var/tmp"}

var foldersKind = listKind(`["/srv/fonts", "./data:/data:rw"]`,
	map[string]any{"type": "string", "pattern": `^[^\x00:]+(:/[^\x00:]*)?(:r[ow])?$`}, parseFolder)

func parseFolder(s string) (pando.Folder, error) {
	words := strings.Split(s, ":")
	f := pando.Folder{Path: words[0]}
	if last := words[len(words)-1]; len(words) > 1 && (last == "rw" || last == "ro") {
		f.Write, words = last == "rw", words[:len(words)-1]
	}
	if len(words) == 2 && strings.HasPrefix(words[1], "/") {
		f.At, words = words[1], words[:1]
	}
	if f.Path == "" || len(words) != 1 {
		return f, fmt.Errorf("%q: want PATH or PATH:PATH_IN_THE_INSTANCE, and :rw behind it for a "+
			"program that writes there", s)
	}
	return f, nil
}

func folderTexts(all []pando.Folder) []string {
	var out []string
	for _, f := range all {
		text := f.Path
		if f.At != "" {
			text += ":" + f.At
		}
		if f.Write {
			text += ":rw"
		}
		out = append(out, text)
	}
	return out
}

var reachKind = listKind("[internet, host]",
	map[string]any{"type": "string", "enum": anyOf(pando.Reachables)},
	func(s string) (pando.Reach, error) { return pando.Reach(s), checkReach(pando.Reach(s)) })

var aliasesKind = listKind("[db.internal, web_app]",
	map[string]any{"type": "string", "pattern": `^[a-z0-9_]([a-z0-9_.-]{0,250}[a-z0-9_])?$`},
	func(s string) (string, error) { return s, pando.CheckAlias(s) })

func reachTexts(all []pando.Reach) []string {
	var out []string
	for _, r := range all {
		out = append(out, string(r))
	}
	return out
}

func anyOf[T ~string](words []T) []any {
	out := make([]any, len(words))
	for i, w := range words {
		out[i] = string(w)
	}
	return out
}

func checkReach(r pando.Reach) error {
	if !slices.Contains(pando.Reachables, r) {
		return fmt.Errorf("%q: want some of internet, tenant, tenants, host and metadata", r)
	}
	return nil
}

var securityKind = listKind("["+pando.SeccompUnconfined+"]",
	map[string]any{"type": "string",
		"pattern": "^(seccomp[=:]unconfined|no-new-privileges(:true)?)$"},
	func(s string) (string, error) {
		switch strings.Replace(s, ":", "=", 1) {
		case pando.SeccompUnconfined:
			return pando.SeccompUnconfined, nil
		case "no-new-privileges", "no-new-privileges=true":
			return "no-new-privileges", nil // of every instance, always
		}
		return "", fmt.Errorf("%q: want %s; every instance has no-new-privileges and no capabilities",
			s, pando.SeccompUnconfined)
	})

// absolute makes the paths of a spec relative to its file.
func (r *reader) absolute(s *pando.Spec) {
	for i, f := range s.Folders {
		if !filepath.IsAbs(f.Path) {
			f.Path = filepath.Join(r.dir, f.Path)
		}
		s.Folders[i].Path = filepath.Clean(f.Path)
	}
	for _, f := range []*string{&s.VM.Kernel, &s.VM.Initrd, &s.VM.Disk} {
		if *f != "" && !filepath.IsAbs(*f) {
			*f = filepath.Join(r.dir, *f)
		}
	}
	for name, file := range s.Secrets {
		if !filepath.IsAbs(file) {
			s.Secrets[name] = filepath.Join(r.dir, file)
		}
	}
}

// systems are the folders that every instance sees as its host has them.
var systems = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix",
	"/gnu", "/etc", "/dev", "/proc", "/sys", "/run/pando", "/run/secrets", "/var/www", "/.host"}

// bundle checks the folder of a bundle.
func (c *checks) bundle(s pando.Spec) {
	f := s.Bundle.Folder
	if f == "" {
		c.that(s.Bundle.Digest == "", "bundle: has a digest and no folder")
		return
	}
	c.text("bundle", f)
	c.that(path.IsAbs(f) && path.Clean(f) == f, "bundle: %q is no absolute path", f)
	c.that(strings.Count(f, "/") > 1, "bundle: %s is a folder at the top: want the folder below it "+
		"that has the program", f)
	for _, own := range systems {
		c.that(f != own && !strings.HasPrefix(f, own+"/"), "bundle: instances see %s as each host has "+
			"it: move the folder, for example to /srv", own)
	}
}

// walls checks the walls of a spec.
func (c *checks) walls(s pando.Spec) {
	c.bundle(s)
	c.that(len(s.Folders) <= foldersMax, "folders: more than %d", foldersMax)
	for i, f := range s.Folders {
		where := fmt.Sprintf("folders[%d]", i)
		c.text(where, f.Path)
		c.that(path.IsAbs(f.Path) && path.Clean(f.Path) == f.Path,
			"%s: %q is no absolute path", where, f.Path)
		for _, own := range []string{"/proc", "/sys", "/dev", "/run/pando", "/run/secrets"} {
			c.that(f.Path != own && !strings.HasPrefix(f.Path, own+"/"),
				"%s: %s is the instance's own", where, own)
		}
		c.that(!slices.Contains(tooWide, f.Path),
			"%s: want the folders below %s that the program needs", where, f.Path)
	}
	for _, f := range s.VM.Files() {
		c.text("vm", f)
		c.that(path.IsAbs(f), "vm: %s: want an absolute path", f)
	}
	c.volumes(s)
	c.secrets(s)
	c.configs(s)
	c.extraHosts(s)
	for _, r := range s.Reach {
		c.also(wrapped("reach", checkReach(r)))
	}
	for _, o := range s.SecurityOpt {
		c.that(o == pando.SeccompUnconfined || o == "no-new-privileges",
			"security_opt: %q: want %s", o, pando.SeccompUnconfined)
	}
	c.that(s.Runtime == "" || s.Runtime == pando.RuntimeCrun,
		"runtime: %q: want %s, or leave it out", s.Runtime, pando.RuntimeCrun)
	for _, why := range runtimeConflicts(s) {
		c.that(false, "%s: %s", why.path, why.text)
	}
	c.also(checkHostname(s.Hostname))
	c.kernelWords(s)
	c.that(s.UsernsMode == "" || s.UsernsMode == pando.UsernsHost,
		"userns_mode: %q: want %s, or leave it out", s.UsernsMode, pando.UsernsHost)
}

func wrapped(where string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %s: %w", pando.ErrInvalid, where, err)
}
