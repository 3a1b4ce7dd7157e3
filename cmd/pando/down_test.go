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

// An agent that does not answer, as after a start that failed, is no news to who has no instances.
func TestDownSpeaksOfInstancesOnlyWhereThereAreAny(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mkfifo(filepath.Join(dir, "agent"), 0o600); err != nil {
		t.Fatal(err)
	}
	silent := exec.Command("cat", "agent") // to whoever reads its command line it is an agent
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

// Network functions run without the daemons: what they keep beside them outlives `pando down --purge`.
func TestDownLeavesWhatFunctionsKeep(t *testing.T) {
	dir := t.TempDir()
	run, data := filepath.Join(dir, "run"), filepath.Join(dir, "data")
	for _, f := range []string{"run/api.sock", "run/sandbox/3/slot.json", "run/fn/nat-0.sock", "data/state.db", "data/store/wal"} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(f)), 0o755); err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(dir, f), "")
	}
	if err := errors.Join(removeOwn(run), removeOwn(data), removeOwn(filepath.Join(dir, "never"))); err != nil {
		t.Fatal(err)
	}
	var left []string
	if err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		left = append(left, strings.TrimPrefix(path, dir))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"", "/run", "/run/fn", "/run/fn/nat-0.sock"}; !slices.Equal(left, want) {
		t.Errorf("left are %q, want %q", left, want)
	}
}
