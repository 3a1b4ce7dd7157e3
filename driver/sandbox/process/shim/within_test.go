package shim

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// anyOwner leaves the owner of a file as it is.
const anyOwner = ^uint32(0)

// An image or a volume has any links. What a shim makes below its root stays there.
func TestNoLinkLeadsOutOfARoot(t *testing.T) {
	dir := t.TempDir()
	outside, inside := filepath.Join(dir, "outside"), filepath.Join(dir, "root")
	for _, d := range []string{outside, inside, inside + "/run"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{
		"absolute": outside, "up": "../outside", "far": "../../../../../.." + outside,
	} {
		if err := os.Symlink(to, filepath.Join(inside, name)); err != nil {
			t.Fatal(err)
		}
	}
	root, err := unix.Open(inside, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(root)
	for _, path := range []string{"absolute/new", "up/new", "far/new", "../outside/new", "run/a/b"} {
		for _, open := range []func(int, string, uint32) (int, error){folderIn, fileIn} {
			if fd, err := open(root, path, anyOwner); err == nil {
				unix.Close(fd)
			}
		}
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("made outside of the root: %v, %v", left, err)
	}
	if _, err := os.Stat(inside + "/run/a/b"); err != nil {
		t.Errorf("a folder without links: %v", err)
	}
}

// A file that is a link is replaced by one, and never followed.
func TestAPlainFileIsNoLink(t *testing.T) {
	dir := t.TempDir()
	kept := filepath.Join(t.TempDir(), "kept")
	if err := os.WriteFile(kept, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(kept, filepath.Join(dir, "hosts")); err != nil {
		t.Fatal(err)
	}
	folder, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(folder)
	fd, err := plainFile(folder, "hosts", "127.0.0.1 localhost\n", anyOwner)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	text, err := os.ReadFile(filepath.Join(dir, "hosts"))
	if err != nil || string(text) != "127.0.0.1 localhost\n" {
		t.Errorf("the file has %q, %v", text, err)
	}
	if text, err := os.ReadFile(kept); err != nil || string(text) != "kept" {
		t.Errorf("the file that the link named has %q, %v", text, err)
	}
}
