package process

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/driver/sandbox/process/wire"
)

// withBundle gives a driver the layer of a bundle, and returns the change of a spec that gives it
// the bundle at a folder.
func withBundle(t *testing.T, d *Driver, folder string, files map[string]string) func(*pando.Spec) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(d.Layers, "site", name)
		err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755),
			os.WriteFile(path, []byte(text), 0o755))
		if err != nil {
			t.Fatal(err)
		}
	}
	d.Images = oneImage{root: pando.ImageRoot{Layers: []string{"site"}}}
	return func(s *pando.Spec) {
		s.Bundle = pando.Bundle{Folder: folder, Digest: "sha256:1"}
		s.WorkingDir = folder
	}
}

func TestAProgramSeesItsBundleWhereTheHostHasNone(t *testing.T) {
	d := newImageDriver(t, 1)
	bundle := withBundle(t, d, "/srv/pando-test/site", map[string]string{
		"start":  "#!/bin/sh\npwd; cat page; ls; id -u; touch mine 2>&1; touch /tmp/x && echo wrote\n",
		"page":   "of the bundle\n",
		"sub/in": "x",
	})
	b := run(t, d, bundle, "./start")
	exited(t, b)
	out := strings.Join(b.LastLines(20), "\n")
	for _, want := range []string{"/srv/pando-test/site\n", "of the bundle\n", "page\nstart\nsub\n",
		"20000000", "Read-only file system", "\nwrote"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in:\n%s", want, out)
		}
	}
	if _, err := os.Stat("/srv/pando-test"); err == nil {
		t.Error("the host has the folder of the bundle now")
	}
	if got, err := Images(d.RunDir); err != nil || !got["sha256:1"] {
		t.Errorf("the bundle in use is not among %v (%v)", got, err)
	}
}

func TestABundleHidesTheFolderOfTheHost(t *testing.T) {
	d := newImageDriver(t, 1)
	host := t.TempDir()
	for name, text := range map[string]string{"start": "#!/bin/sh\necho of the host\n", "other": "x"} {
		if err := os.WriteFile(filepath.Join(host, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	bundle := withBundle(t, d, host, map[string]string{"start": "#!/bin/sh\necho of the bundle; ls\n"})
	b := run(t, d, bundle, filepath.Join(host, "start"))
	exited(t, b)
	if got := strings.Join(b.LastLines(9), " "); got != "of the bundle start" {
		t.Errorf("the output is %q", got)
	}
}

func TestACommandOfTheSystemRunsInABundle(t *testing.T) {
	d := newImageDriver(t, 1)
	bundle := withBundle(t, d, "/srv/pando-test/site", map[string]string{"sub/page": "text\n"})
	b := run(t, d, func(s *pando.Spec) { bundle(s); s.WorkingDir += "/sub" }, "cat", "page")
	exited(t, b)
	if got := strings.Join(b.LastLines(9), " "); got != "text" {
		t.Errorf("the output is %q", got)
	}
}

func TestWhatABundleLacksIsNamed(t *testing.T) {
	d := newImageDriver(t, 0)
	bundle := withBundle(t, d, "/srv/pando-test/site", map[string]string{"page": "x"})
	if err := os.Symlink("/etc", filepath.Join(d.Layers, "site/out")); err != nil {
		t.Fatal(err)
	}
	start := func(dir, command string) error {
		s := pando.Spec{Name: "web", Command: []string{command}}
		bundle(&s)
		s.WorkingDir += dir
		_, err := d.Start(t.Context(), pando.SandboxSpec{
			Instance: pando.Instance{ID: "web-1", Service: pando.DefaultService("web")}, Spec: s})
		return err
	}
	if err := start("", "./none"); err == nil ||
		!strings.Contains(err.Error(), "no program /srv/pando-test/site/none") {
		t.Errorf("a missing program: %v", err)
	}
	for _, dir := range []string{"/none", "/page", "/out"} {
		if err := start(dir, "true"); !errors.Is(err, pando.ErrInvalid) ||
			!strings.Contains(err.Error(), "`working_dir`") {
			t.Errorf("the working directory %s: %v", dir, err)
		}
	}
	d.Images = oneImage{root: pando.ImageRoot{Layers: []string{"a", "b"}}}
	if err := start("", "true"); !errors.Is(err, pando.ErrInvalid) {
		t.Errorf("an image that is no bundle: %v", err)
	}
	d.Images = oneImage{err: pando.ErrNotReady}
	if err := start("", "true"); !errors.Is(err, pando.ErrNotReady) {
		t.Errorf("a bundle that is not here: %v", err)
	}
	d.Images = nil
	if err := start("", "true"); !errors.Is(err, pando.ErrUnsupported) {
		t.Errorf("a host without bundles: %v", err)
	}
}

func TestASlotOfAnOlderBuildRunsNoBundle(t *testing.T) {
	d := newImageDriver(t, 0)
	old, err := d.pool.make()
	if err != nil {
		t.Fatal(err)
	}
	old.Bundles = false
	d.pool.mu.Lock()
	d.pool.ready = append(d.pool.ready, old)
	d.pool.mu.Unlock()
	b := run(t, d, withBundle(t, d, "/srv/pando-test/site", map[string]string{"page": "new\n"}),
		"cat", "page")
	exited(t, b)
	if got := strings.Join(b.LastLines(9), " "); got != "new" {
		t.Errorf("it sees %q", got)
	}
}

func TestTheInterpreterOfABundledScriptIsShown(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"python": "#!/opt/python/bin/python3\n", "shell": "#!/bin/sh\n", "own": "#!/srv/a/run\n",
		"binary": "\x7fELF", "env": "#!/usr/bin/env python3\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	b := &wire.Bundle{Layer: "x", Path: "/srv/a"}
	for command, want := range map[string]string{
		"./python": "/opt/python", "/srv/a/python": "/opt/python",
		"./shell": "", "./own": "", "./binary": "", "./env": "", "./none": "", "/usr/bin/true": "",
	} {
		got := ""
		for _, s := range interpretersOf(b, root, &wire.Program{Argv: []string{command}, Dir: "/srv/a"}) {
			got += s.Path
		}
		if got != want {
			t.Errorf("%s shows %q, want %q", command, got, want)
		}
	}
}
