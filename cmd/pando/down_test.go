package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A silent agent, for example after a failed start, does not cause a warning if there are no
// instances.
func TestDownSpeaksOfInstancesOnlyWhereThereAreAny(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mkfifo(filepath.Join(dir, "agent"), 0o600); err != nil {
		t.Fatal(err)
	}
	// Its command line looks like the command line of an agent.
	silent := exec.Command("cat", "agent")
	silent.Dir = dir
	if err := silent.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = silent.Process.Kill()
		_ = silent.Wait()
	})
	p := place{Run: dir, Host: "h1"}
	writeFile(t, pidFile(p, "agent"), fmt.Sprint(silent.Process.Pid))
	down := func() string {
		var said strings.Builder
		if err := newCommand(Env{Stderr: &said, Getenv: func(string) string { return "" }}).evacuate(t.Context(), p, time.Second); err != nil {
			t.Fatal(err)
		}
		return said.String()
	}
	slot := filepath.Join(p.sandboxes(), "3", "slot.json")
	if err := os.MkdirAll(filepath.Dir(slot), 0o755); err != nil {
		t.Fatal(err)
	}
	writeFile(t, slot, `{"number": 3}`)
	if said := down(); said != "" {
		t.Errorf("without an instance it says %q", said)
	}
	writeFile(t, slot, `{"number": 3, "instance": "web-1"}`)
	if said := down(); !strings.Contains(said, "killed without having left") {
		t.Errorf("with an instance it says %q", said)
	}
}

// Network functions run without the daemons. Their sockets survive `pando down`.
func TestDownLeavesWhatFunctionsKeep(t *testing.T) {
	dir := t.TempDir()
	files(t, dir, "run/api.sock", "run/sandbox/3/slot.json", "run/fn/nat/control.sock", "bare/api.sock")
	if err := errors.Join(removeRun(filepath.Join(dir, "run")), removeRun(filepath.Join(dir, "bare")), removeRun(filepath.Join(dir, "never"))); err != nil {
		t.Fatal(err)
	}
	if got, want := below(t, dir), []string{"", "/run", "/run/fn", "/run/fn/nat", "/run/fn/nat/control.sock"}; !slices.Equal(got, want) {
		t.Errorf("left are %q, want %q", got, want)
	}
}

// The data folder may be a mount point in another namespace, so purge empties it and does not
// remove it.
func TestPurgeEmptiesTheDataFolder(t *testing.T) {
	dir := t.TempDir()
	files(t, dir, "data/state.db", "data/store/wal", "data/fn/default/nat.meter")
	if err := errors.Join(empty(filepath.Join(dir, "data")), empty(filepath.Join(dir, "never"))); err != nil {
		t.Fatal(err)
	}
	if got, want := below(t, dir), []string{"", "/data"}; !slices.Equal(got, want) {
		t.Errorf("left are %q, want %q", got, want)
	}
}

// If a function cannot be ended, the error names it, and its folder stays.
func TestPurgeEndsFunctionsByTheirOwnProgram(t *testing.T) {
	dir := t.TempDir()
	p, bin := place{Run: filepath.Join(dir, "run")}, filepath.Join(dir, "bin")
	o := newCommand(Env{Getenv: func(string) string { return "" }})
	if err := o.endFunctions(t.Context(), p); err != nil {
		t.Errorf("without a function: %v", err)
	}
	files(t, dir, "run/fn/nat/control.sock", "run/fn/ids/control.sock", "bin/pando-unit")
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	said := filepath.Join(dir, "said")
	for script, want := range map[string]string{"": "", "echo it hangs >&2; exit 1": "it hangs"} {
		program := "#!/bin/sh\necho \"$*\" >" + said + "\n" + script + "\n"
		if err := os.WriteFile(filepath.Join(bin, "pando-unit"), []byte(program), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(bin, "pando-unit"), 0o755); err != nil {
			t.Fatal(err)
		}
		err := o.endFunctions(t.Context(), p)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", script, err, want)
		}
	}
	text, err := os.ReadFile(said)
	if want := "rm --run-dir " + filepath.Join(p.Run, "fn") + " ids nat\n"; err != nil || string(text) != want {
		t.Errorf("the functions' program was asked %q (%v), want %q", text, err, want)
	}
}

// files creates empty files below a folder.
func files(t *testing.T, dir string, names ...string) {
	t.Helper()
	for _, f := range names {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(f)), 0o755); err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(dir, f), "")
	}
}

// below lists everything below a folder.
func below(t *testing.T, dir string) (all []string) {
	t.Helper()
	if err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		all = append(all, strings.TrimPrefix(path, dir))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return all
}
