package process

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/view"
	"pando.run/pando/driver/sandbox/process/wire"
)

// named returns the paths of the host that the program of a spec sees beside the system's: the
// folders of the spec, the program with its folder and its interpreter, paths that the command
// names, and configuration in /etc of the programs that the command names.
func named(s pando.Spec, env []string) []wire.HostPath {
	var out []wire.HostPath
	for _, f := range s.Folders {
		if f.At == "" {
			out = append(out, wire.HostPath{Path: f.Path, Write: f.Write})
		}
	}
	paths := programFolders(wire.Program{Argv: s.Argv(), Dir: s.WorkingDir, Env: env})
	for _, word := range s.Argv()[1:] {
		paths = append(paths, pathsIn(word)...)
	}
	paths = append(paths, configuration(s.Argv())...)
	for _, path := range slices.Compact(slices.Sorted(slices.Values(paths))) {
		listed := slices.ContainsFunc(out, func(f wire.HostPath) bool { return view.IsBelow(f.Path, path) })
		if !listed && !view.IsVisible(path) && !ownFolder(path) {
			out = append(out, wire.HostPath{Path: path})
		}
	}
	return out
}

// ownFolder reports whether an instance has a folder of its own in place of a path of the host.
func ownFolder(path string) bool {
	if strings.Count(path, "/") < 2 { // a folder at the top, such as /srv
		return true
	}
	for _, dir := range append([]string{"/proc", "/sys", "/dev"}, view.PrivateFolders...) {
		if view.IsBelow(dir, path) {
			return true
		}
	}
	return false
}

// programFolders returns the folders of a program, of the file that a link leads to, and of the
// interpreter that a script names.
func programFolders(p wire.Program) []string {
	path, err := view.LookPath(p)
	if err != nil {
		return nil // the shim reports it
	}
	out := linked(path)
	line, by, err := view.InterpreterOf(path)
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
		if at, err := view.LookPath(wire.Program{Argv: []string{word}, Env: p.Env, Dir: p.Dir}); err == nil {
			out = append(out, linked(at)...)
		}
		break
	}
	return out
}

// linked returns the folders of a program and of each file on the way of its links: an instance
// follows the links itself.
func linked(path string) []string {
	out := []string{view.PrefixOf(path)}
	for range view.HopsMax {
		to, err := os.Readlink(path)
		if err != nil {
			break
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(path), to)
		}
		path = to
		out = append(out, view.PrefixOf(path))
	}
	if real, err := filepath.EvalSymlinks(path); err == nil && real != path {
		out = append(out, view.PrefixOf(real))
	}
	return out
}

// unseen adds to the error of a start that this host has the program which an instance does not see.
// It runs in the agent, which sees the host's files.
func unseen(p wire.Program, err error) error {
	if err == nil || !strings.Contains(err.Error(), view.NoProgram) || p.Layers != nil || p.Bundle != nil {
		return err // the shim's errors come as text
	}
	at, there := view.LookPath(p)
	if there != nil || view.InVolume(p, at) || slices.ContainsFunc(p.Show, func(s wire.HostPath) bool {
		return view.IsBelow(s.Path, at)
	}) {
		return err
	}
	return fmt.Errorf("%w; this host has %s: add `folders: [%s]` to the spec",
		err, at, view.PrefixOf(at))
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
