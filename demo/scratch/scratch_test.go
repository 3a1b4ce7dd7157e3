package scratch

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestOnlyTheFolderOfADeadDemoIsSwept(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	alive, err := Make("demo-")
	if err != nil {
		t.Fatal(err)
	}
	dead, err := Make("demo-")
	if err != nil {
		t.Fatal(err)
	}
	if err := dead.lock.Close(); err != nil { // as the kernel does
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(os.TempDir(), "demo-begun"), 0o700); err != nil {
		t.Fatal(err)
	}
	other, err := Make("another-")
	if err != nil {
		t.Fatal(err)
	}
	_ = other.lock.Close()

	if err := os.Symlink(other.Path, filepath.Join(os.TempDir(), "demo-link")); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		planted, err := Make("demo-")
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(planted.lock.Close(), os.Chown(planted.Path, 65534, 65534)); err != nil {
			t.Fatal(err)
		}
	}

	busy := errors.New("busy")
	if err := Sweep("demo-", func(string) error { return busy }); !errors.Is(err, busy) {
		t.Fatalf("a sweep that fails returns %v", err)
	}
	var lowered []string
	if err := Sweep("demo-",
		func(path string) error { lowered = append(lowered, path); return nil }); err != nil {
		t.Fatal(err)
	}
	if len(lowered) != 1 || lowered[0] != dead.Path {
		t.Errorf("lowered %v, want %s", lowered, dead.Path)
	}
	if _, err := os.Stat(dead.Path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the dead demo's folder: %v", err)
	}
	for _, path := range []string{alive.Path, filepath.Join(os.TempDir(), "demo-begun"), other.Path} {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
	if err := alive.Remove(); err != nil {
		t.Error(err)
	}
}
