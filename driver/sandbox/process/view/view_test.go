package view

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/wire"
)

func TestOnlyTheSystemIsVisibleToAll(t *testing.T) {
	for path, want := range map[string]bool{
		"/usr/bin/python3": true, "/usr": true, "/lib64/ld.so": true, "/usrlocal": false, "/": false,
		"/srv/app": false, "/tmp/x": false, "/var/www/index.html": true, "/var/wwwroot": false,
	} {
		if got := IsVisible(path); got != want {
			t.Errorf("%s: visible is %v", path, got)
		}
	}
}

// A name without a slash is looked for in the program's own PATH, and one with a slash from its
// working directory. The error names what to change.
func TestAProgramIsFoundAsItWouldFindIt(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"app": 0o755, "text": 0o644} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, one := range []struct {
		command, path, found, says string
		is                         error
	}{
		{command: "app", path: "/none:" + dir, found: dir + "/app"},
		{command: "./app", found: dir + "/app"},
		{command: dir + "/app", found: dir + "/app"},
		{command: "app", path: "/none", says: "PATH=/none", is: pando.ErrNotFound},
		{command: "text", path: dir, says: "no program", is: pando.ErrNotFound},
		{command: "./text", found: dir + "/text", says: "chmod +x", is: pando.ErrInvalid},
		{command: "./none", found: dir + "/none", says: "`command`", is: pando.ErrNotFound},
		{command: dir, found: dir, says: "is a folder", is: pando.ErrInvalid},
	} {
		p := wire.Program{Argv: []string{one.command}, Dir: dir, Env: []string{"PATH=" + one.path}}
		found, err := LookPath(p)
		if found != one.found || !errors.Is(err, one.is) ||
			err != nil && !strings.Contains(err.Error(), one.says) {
			t.Errorf("%s in %q: %q, %v", one.command, one.path, found, err)
		}
	}
}
