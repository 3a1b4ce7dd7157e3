package process

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/wire"
)

// A program sees the folder of every link on the way to its interpreter, also if `env` finds it.
func TestAProgramSeesTheWayToItsInterpreter(t *testing.T) {
	dir, home := folder(t, "/srv"), folder(t, "/srv")
	for _, name := range []string{"venv/bin", "first/bin", "last/bin", "tools/bin"} {
		if err := os.MkdirAll(filepath.Join(home, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	at := func(name string) string { return filepath.Join(home, name) }
	for name, to := range map[string]string{"venv/bin/python": at("first/bin/python"),
		"first/bin/python": at("last/bin/python3"), "last/bin/python3": "/bin/sh"} {
		if err := os.Symlink(to, at(name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{dir + "/app": "#!" + at("venv/bin/python") + "\necho ran\n",
		dir + "/tool": "#!/usr/bin/env -S ptool\n", at("tools/bin/ptool"): "#!/bin/sh\necho ran\n"} {
		if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	env := []string{"PATH=/usr/bin:/bin:" + at("tools/bin")}
	for name, want := range map[string][]string{
		"app": {at("venv"), at("first"), at("last")}, "tool": {at("tools")},
	} {
		spec := pando.Spec{Command: []string{dir + "/" + name}, WorkingDir: dir}
		for _, path := range want {
			if all := named(spec, env); !slices.Contains(all, wire.HostPath{Path: path}) {
				t.Errorf("%s: shows %v, not %s", name, all, path)
			}
		}
		with := func(s *pando.Spec) {
			s.Environment = map[string]string{"PATH": strings.TrimPrefix(env[0], "PATH=")}
		}
		b := run(t, newDriver(t, 0), with, dir+"/"+name)
		if e := exited(t, b); e.Code != 0 || !slices.Contains(e.LastLines, "ran") {
			t.Errorf("%s: %+v", name, e)
		}
	}
}
