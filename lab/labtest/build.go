package labtest

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

var built sync.Map // path -> *build

type build struct {
	once sync.Once
	err  error
}

// Build builds a command of this module ("./cmd/pando") as `make build` does, and returns its path
// in bin/. The file has the package's name, followed by the build tags if any. Build runs at most
// once per process and command; without changes the go command keeps the file.
func Build(t testing.TB, pkg string, tags ...string) string {
	t.Helper()
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(root, "bin", strings.Join(append([]string{filepath.Base(pkg)}, tags...),
		"."))
	v, _ := built.LoadOrStore(path, &build{})
	b := v.(*build)
	b.once.Do(func() { b.err = buildOnce(root, pkg, path, tags) })
	if b.err != nil {
		t.Fatal(b.err)
	}
	return path
}

func buildOnce(root, pkg, path string, tags []string) error {
	if err := readSources(root); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	// Tests of several packages build at the same time: the second one finds the work done.
	lock, err := os.OpenFile(filepath.Join(filepath.Dir(path), ".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-tags",
		strings.Join(tags, ","), "-o", path, pkg)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, out)
	}
	return nil
}

// readSources reads every source file of the module, so that Go's test cache lists them as
// dependencies of the test. The cache does not see the reads of a child process.
func readSources(root string) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); path != root &&
				(strings.HasPrefix(name, ".") || name == "bin" || name == "target" || name == "node_modules") {
				return fs.SkipDir
			}
			return nil
		}
		if ext := filepath.Ext(path); ext == ".go" || ext == ".o" || ext == ".mod" {
			_, err = os.Stat(path)
		}
		return err
	})
}

func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(text), "module pando.run/pando\n") {
			return dir, nil
		}
	}
	return "", fmt.Errorf("the test does not run inside the module pando.run/pando: %w",
		fs.ErrNotExist)
}
