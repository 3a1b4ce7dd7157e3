package untrusted

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// nest makes folders in each other below a folder, more than a path can name.
func nest(t *testing.T, dir string, levels int) {
	t.Helper()
	fd, err := open(unix.AT_FDCWD, dir)
	name := strings.Repeat("d", 200)
	for range levels {
		if err != nil {
			break
		}
		err = unix.Mkdirat(fd, name, 0o700)
		was := fd
		if err == nil {
			fd, err = open(was, name)
		}
		unix.Close(was)
	}
	if err == nil {
		var f int
		f, err = unix.Openat(fd, "file", unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
		unix.Close(f)
		unix.Close(fd)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// limitFiles lets this process open a few files only, as a host with many instances has few left.
func limitFiles(t *testing.T, most uint64) {
	t.Helper()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: most, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &was) })
}

func visited(t *testing.T, dir string, levels int) (all []string, deep bool) {
	t.Helper()
	deep, err := Walk(t.Context(), dir, levels, func(f *File) error {
		all = append(all, f.Path)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(all)
	return all, deep
}

func TestAWalkFollowsNoLinkAndHasABoundForItsLevels(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	for _, err := range []error{os.MkdirAll(filepath.Join(dir, "a/b/c"), 0o700),
		os.WriteFile(filepath.Join(dir, "a/b/c/file"), nil, 0o600),
		os.WriteFile(filepath.Join(outside, "secret"), nil, 0o600),
		os.Symlink(outside, filepath.Join(dir, "link"))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	all, deep := visited(t, dir, 8)
	if want := []string{"a", "a/b", "a/b/c", "a/b/c/file", "link"}; !slices.Equal(all, want) || deep {
		t.Errorf("it visits %q, deep %t", all, deep)
	}
	all, deep = visited(t, dir, 2)
	if want := []string{"a", "a/b", "a/b/c", "link"}; !slices.Equal(all, want) || !deep {
		t.Errorf("with two levels it visits %q, deep %t", all, deep)
	}
}

func TestFoldersThatNoPathNamesAreReadAndRemoved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "volume")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	const levels = 600
	nest(t, dir, levels)
	if all, deep := visited(t, dir, 256); len(all) != 257 || !deep {
		t.Errorf("%d files, deep %t", len(all), deep)
	}
	limitFiles(t, 300)
	if err := Remove(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it stays: %v", err)
	}
	if err := Remove(dir); err != nil {
		t.Errorf("a second time: %v", err)
	}
}

func TestARemovalLeavesTheTargetsOfLinks(t *testing.T) {
	outside, dir := t.TempDir(), filepath.Join(t.TempDir(), "volume")
	kept := filepath.Join(outside, "kept")
	for _, err := range []error{os.MkdirAll(filepath.Join(dir, "a"), 0o700),
		os.WriteFile(kept, nil, 0o600), os.Symlink(outside, filepath.Join(dir, "a/link")),
		os.Symlink(outside, dir+"-link")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := Remove(dir + "-link"); err == nil {
		t.Error("it removes the files of a link's target")
	}
	if _, err := os.Lstat(kept); err != nil {
		t.Errorf("a file outside is gone: %v", err)
	}
}
