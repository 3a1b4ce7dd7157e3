package cli

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"pando.run/pando"
)

// A command writes over its own files only, unless it is forced, and never over a folder or a pipe.
func TestOnlyOwnFilesAreReplaced(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, text := range map[string]string{"own": "pando", "other": "diary", "empty": ""} {
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Mkdir(at("folder"), 0o700), syscall.Mkfifo(at("pipe"), 0o600),
		os.Symlink("other", at("link")), os.Symlink("none", at("dangling"))); err != nil {
		t.Fatal(err)
	}
	own := func(file string) bool {
		text, err := os.ReadFile(file)
		return err == nil && string(text) == "pando"
	}
	for name, want := range map[string][2]error{ // without and with force
		"none": {}, "own": {}, "empty": {}, "dangling": {},
		"other":    {pando.ErrExists, nil},
		"link":     {pando.ErrExists, nil},
		"pipe":     {pando.ErrExists, pando.ErrExists},
		"folder":   {pando.ErrInvalid, pando.ErrInvalid},
		"own/more": {syscall.ENOTDIR, syscall.ENOTDIR},
	} {
		for n, force := range []bool{false, true} {
			if err := MayReplace(at(name), force, own); !errors.Is(err, want[n]) {
				t.Errorf("%s, force %t: %v, want %v", name, force, err, want[n])
			}
		}
	}
}
