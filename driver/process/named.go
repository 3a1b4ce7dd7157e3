package process

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"pando.run/pando"
)

// named returns the paths of the host that the program of a spec sees beside the system's: the
// folders of the spec, the program with its folder and its interpreter, paths that the command
// names, and configuration in /etc of the programs that the command names.
func named(s pando.Spec, env []string) []shown {
	var out []shown
	for _, f := range s.Folders {
		if f.At == "" {
			out = append(out, shown{f.Path, f.Write})
		}
	}
	paths := programFolders(program{Argv: s.Argv(), Dir: s.WorkingDir, Env: env})
	for _, word := range s.Argv()[1:] {
		paths = append(paths, pathsIn(word)...)
	}
	paths = append(paths, configuration(s.Argv())...)
	for _, path := range slices.Compact(slices.Sorted(slices.Values(paths))) {
		listed := slices.ContainsFunc(out, func(f shown) bool { return below(f.Path, path) })
		if !listed && !visible(path) && !ownFolder(path) {
			out = append(out, shown{Path: path})
		}
	}
	return out
}

// ownFolder reports whether an instance has a folder of its own in place of a path of the host.
func ownFolder(path string) bool {
	if strings.Count(path, "/") < 2 { // a folder at the top, such as /srv
		return true
	}
	for _, dir := range append([]string{"/proc", "/sys", "/dev"}, private...) {
		if below(dir, path) {
			return true
		}
	}
	return false
}

// programFolders returns the folders of a program, of the file that a link leads to, and of the
// interpreter that a script names.
func programFolders(p program) []string {
	path, err := lookPath(p)
	if err != nil {
		return nil // the shim reports it
	}
	out := linked(path)
	line, by, err := interpreterOf(path)
	if err != nil || !filepath.IsAbs(by) {
		return out
	}
	out = append(out, linked(by)...)
	if filepath.Base(by) != "env" {
		return out
	}
	// `#!/usr/bin/env node` finds its interpreter in PATH.
	for _, word := range strings.Fields(strings.TrimPrefix(line, "#!"))[1:] {
		if strings.HasPrefix(word, "-") || strings.Contains(word, "=") {
			continue
		}
		if at, err := lookPath(program{Argv: []string{word}, Env: p.Env, Dir: p.Dir}); err == nil {
			out = append(out, linked(at)...)
		}
		break
	}
	return out
}

// linked returns the folders of a program and of each file on the way of its links: an instance
// follows the links itself.
func linked(path string) []string {
	out := []string{prefix(path)}
	for range hopsMax {
		to, err := os.Readlink(path)
		if err != nil {
			break
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(path), to)
		}
		path = to
		out = append(out, prefix(path))
	}
	if real, err := filepath.EvalSymlinks(path); err == nil && real != path {
		out = append(out, prefix(real))
	}
	return out
}

// prefix returns the folder of a program. Its libraries lie beside its bin.
func prefix(path string) string {
	dir := filepath.Dir(path)
	switch filepath.Base(dir) {
	case "bin", "sbin", "libexec":
		if above := filepath.Dir(dir); strings.Count(above, "/") >= 2 {
			return above
		}
	}
	return dir
}

// interpreterIn returns the program that the first line of a script names, or "".
func interpreterIn(f io.Reader) string {
	line, _ := bufio.NewReaderSize(f, 256).ReadSlice('\n')
	rest, ok := strings.CutPrefix(string(line), "#!")
	if words := strings.Fields(rest); ok && len(words) > 0 {
		return words[0]
	}
	return ""
}

// absolute finds paths of files in a word of a command or in a line of a log.
var absolute = regexp.MustCompile(`(?:^|[\s=:,'"(\[])(/[\w.@%+~-]+(?:/[\w.@%+~-]+)+)`)

// pathsIn returns the paths of the host that a word of a command names. A file brings its folder,
// unless that is a folder at the top.
func pathsIn(word string) []string {
	var out []string
	for _, found := range absolute.FindAllStringSubmatch(word, -1) {
		path := filepath.Clean(found[1])
		info, err := os.Stat(path)
		if err != nil {
			continue
		}
		if dir := filepath.Dir(path); !info.IsDir() && strings.Count(dir, "/") >= 2 {
			path = dir
		}
		out = append(out, path)
	}
	return out
}

var letters = regexp.MustCompile(`^[a-z]{3,}`)

// configuration returns the entries of /etc that have the name of a program of the command, such as
// /etc/redis for redis-server.
func configuration(command []string) []string {
	var out []string
	for _, word := range strings.Fields(strings.Join(command, " ")) {
		base := filepath.Base(word)
		for _, name := range []string{base, letters.FindString(base), strings.TrimSuffix(base, "d")} {
			at := filepath.Join("/etc", name)
			info, err := os.Stat(at)
			if len(name) < 3 || err != nil || !info.IsDir() || slices.Contains(hostsOwn, name) {
				continue
			}
			out = append(out, at)
		}
	}
	return out
}

// hostsOwn are folders of /etc that no command shows to an instance.
var hostsOwn = []string{"ssh", "sudoers.d", "pam.d", "security", "cron.d", "systemd", "pando"}

// missing returns hints for paths that the last lines of a program name, which the host has and the
// view of its instance lacks. root is the root of the view.
func missing(lines []string, root string) []string {
	var out []string
	for _, line := range lines {
		for _, found := range absolute.FindAllStringSubmatch(line, -1) {
			path := strings.TrimRight(found[1], ".")
			hint := fmt.Sprintf("pando: the host has %s, but this instance does not see it; name it, or "+
				"its folder, in `folders` in the spec", path)
			if exists(path) && !exists(filepath.Join(root, path)) && !slices.Contains(out, hint) {
				out = append(out, hint)
			}
		}
	}
	return out[:min(len(out), 3)]
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
