package function

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// If a function cannot be ended, the error names it, and its folder stays.
func TestPurgeEndsFunctionsByTheirOwnProgram(t *testing.T) {
	dir := t.TempDir()
	run, bin := filepath.Join(dir, "run", Folder), filepath.Join(dir, "bin")
	if err := RemoveAll(t.Context(), run); err != nil {
		t.Errorf("without a function: %v", err)
	}
	for _, folder := range []string{filepath.Join(run, "nat"), filepath.Join(run, "ids"), bin} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	said := filepath.Join(dir, "said")
	for script, want := range map[string]string{"": "", "echo it hangs >&2; exit 1": "it hangs"} {
		program := "#!/bin/sh\necho \"$*\" >" + said + "\n" + script + "\n"
		if err := os.WriteFile(filepath.Join(bin, "pando-unit"), []byte(program), 0o755); err != nil {
			t.Fatal(err)
		}
		err := RemoveAll(t.Context(), run)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", script, err, want)
		}
	}
	text, err := os.ReadFile(said)
	if want := "rm --run-dir " + run + " ids nat\n"; err != nil || string(text) != want {
		t.Errorf("the functions' program was asked %q (%v), want %q", text, err, want)
	}
}
