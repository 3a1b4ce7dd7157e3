package contract

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// makeImage writes the probe's image as a layout, and returns its folder.
func makeImage(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "probe")
	build := exec.Command("go", "build", "-trimpath", "-o", program, "./probe")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the probe: %v\n%s", err, out)
	}
	body, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	files := archive(t, body)
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(files)), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		t.Fatal(err)
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1),
		types.OCIConfigJSON)
	image, err := mutate.AppendLayers(base, layer)
	if err != nil {
		t.Fatal(err)
	}
	image, err = mutate.ConfigFile(image, &v1.ConfigFile{Architecture: "amd64", OS: "linux",
		RootFS: mustRoot(t, image), Config: v1.Config{
			Entrypoint: []string{"/probe"}, WorkingDir: "/srv",
			Env:        []string{"PATH=/usr/bin:/bin", "FROM_IMAGE=yes"},
			Volumes:    map[string]struct{}{"/data": {}},
			StopSignal: "SIGQUIT",
		}})
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "contract-") // Podman takes no upper case
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	to, err := layout.Write(dir, empty.Index)
	if err == nil {
		err = to.AppendImage(image, layout.WithAnnotations(
			map[string]string{"org.opencontainers.image.ref.name": "latest"}))
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func mustRoot(t *testing.T, i v1.Image) v1.RootFS {
	t.Helper()
	c, err := i.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	return c.RootFS
}

// archive returns the files of the image.
func archive(t *testing.T, probe []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	add := func(name string, kind byte, mode int64, id int, body string) {
		t.Helper()
		h := &tar.Header{Name: name, Typeflag: kind, Mode: mode, Uid: id, Gid: id, Format: tar.FormatPAX}
		if kind == tar.TypeReg {
			h.Size = int64(len(body))
		} else {
			h.Linkname = body
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if kind == tar.TypeReg {
			if _, err := w.Write([]byte(body)); err != nil {
				t.Fatal(err)
			}
		}
	}
	add("probe", tar.TypeReg, 0o755, 0, string(probe))
	add(".probe-image", tar.TypeReg, 0o644, 0, "")
	for _, dir := range []string{"etc", "run", "usr", "opt", "home", "var", "var/lib", "var/log", "bin",
		"srv", "keep"} {
		add(dir+"/", tar.TypeDir, 0o755, 0, "")
	}
	add("root/", tar.TypeDir, 0o700, 0, "")
	add("tmp/", tar.TypeDir, 0o1777, 0, "")
	add("var/tmp/", tar.TypeDir, 0o1777, 0, "")
	add("etc/passwd", tar.TypeReg, 0o644, 0,
		"root:x:0:0:root:/root:/bin/sh\napp:x:1000:1000::/home:/bin/sh\n")
	add("etc/group", tar.TypeReg, 0o644, 0, "root:x:0:\napp:x:1000:\nextra:x:2000:app\n")
	add("etc/hosts", tar.TypeReg, 0o644, 0, "192.0.2.1 builder\n")
	add("etc/hostname", tar.TypeReg, 0o644, 0, "builder\n")
	add("data/", tar.TypeDir, 0o2775, 1000, "")
	add("data/seed", tar.TypeReg, 0o640, 1000, "of the image")
	add("data/link", tar.TypeSymlink, 0o777, 1000, "seed")
	add("keep/seed", tar.TypeReg, 0o644, 0, "kept")
	add("keep/sub/", tar.TypeDir, 0o755, 1000, "")
	add("srv/directory", tar.TypeReg, 0o640, 70_000, "of a directory service")
	add("srv/project", tar.TypeReg, 0o640, 1_000_620_000, "of an OpenShift project")
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
