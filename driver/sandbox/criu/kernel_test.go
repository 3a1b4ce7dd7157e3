package criu

import (
	"os"
	"path/filepath"
	"testing"
)

// A CRIU gets the facts that an earlier one of this boot left in its folder. A link or a file that
// a program put there is removed and never read, and a failed run leaves nothing.
func TestFactsAboutTheKernelAreKept(t *testing.T) {
	tool := Tool{Cache: filepath.Join(t.TempDir(), "criu")}
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("hush"), 0o600); err != nil {
		t.Fatal(err)
	}
	// run is a CRIU that succeeds or fails, and returns the facts that it was given.
	run := func(prepare, leave func(file string), ok bool) string {
		t.Helper()
		dir := t.TempDir()
		file := filepath.Join(dir, kernelFile)
		prepare(file)
		in, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		f := tool.factsFor("restore", in)
		given, _ := os.ReadFile(file)
		leave(file)
		f.keep(ok, os.Getuid())
		if _, err := os.Lstat(file); err == nil {
			t.Error("a file of CRIU stays in the folder")
		}
		return string(given)
	}
	nothing := func(string) {}
	write := func(text string) func(string) {
		return func(file string) {
			_ = os.Remove(file)
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	link := func(file string) {
		if err := os.Symlink(secret, file); err != nil {
			t.Fatal(err)
		}
	}
	if got := run(write("planted"), nothing, true); got != "" {
		t.Errorf("the first run reads %q", got)
	}
	if got := run(nothing, write("of a failure"), false); got != "" {
		t.Errorf("the second run reads %q", got)
	}
	run(nothing, link, true)
	run(nothing, write("facts"), true)
	if got := run(link, write("others"), true); got != "facts" {
		t.Errorf("a later run reads %q, want the facts", got)
	}
	if got := run(write("planted"), nothing, true); got != "facts" {
		t.Errorf("after a file of another: %q, want the facts", got)
	}
	if text, err := os.ReadFile(secret); err != nil || string(text) != "hush" {
		t.Errorf("the target of a link is %q (%v)", text, err)
	}
	tool.Cache = ""
	if got := run(nothing, write("facts"), true); got != "" {
		t.Errorf("without a cache a run reads %q", got)
	}
}
