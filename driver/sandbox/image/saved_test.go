package image

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// A file of `docker save` from a stranger asks for more memory, steps or bytes than an image may have. It
// is refused before its reader takes them, and leaves nothing.
func TestAHostileFileOfDockerSaveIsRefused(t *testing.T) {
	list := func(layers int) string {
		return `[{"Config":"c.json","Layers":[` + strings.TrimSuffix(strings.Repeat(`"l",`, layers), ",") + `]}]`
	}
	wide := strings.Repeat(" ", smallMax+1)
	one := file{name: "c.json", body: `{"os":"linux","architecture":"` + runtime.GOARCH + `","rootfs":{"type":"layers","diff_ids":["sha256:` +
		strings.Repeat("0", 64) + `"]}}`}
	many := []file{{name: listName, body: list(1)}, one}
	for n := range savedEntriesMax {
		many = append(many, file{name: fmt.Sprint(n)})
	}
	link := file{name: listName, kind: '2', link: "far"}
	twice := func(plain []byte) []byte { return compress(t, "gzip", compress(t, "zstd", plain)) }
	inner := string(compress(t, "gzip", archive(t, file{name: "app"})))
	for name, c := range map[string]struct {
		want  string
		files []file
		pack  func([]byte) []byte
	}{
		"a long list of images":      {"has 4 MiB", []file{{name: listName, body: wide}}, nil},
		"a long configuration":       {"has 4 MiB", []file{{name: listName, body: list(1)}, {name: "c.json", body: wide}}, nil},
		"more layers than can be":    {"121 layers", []file{{name: listName, body: list(layersMax + 1)}, one}, nil},
		"more entries than can be":   {"entries", many, nil},
		"a list behind a link":       {"is no file", []file{link, {name: "far", body: wide}}, nil},
		"two images":                 {"2 images", []file{{name: listName, body: "[{},{}]"}}, nil},
		"no list":                    {`no "manifest.json"`, []file{one}, nil},
		"a list that is none":        {"manifest.json", []file{{name: listName, body: "{"}}, nil},
		"no configuration":           {`no "c.json"`, []file{{name: listName, body: list(1)}}, nil},
		"an archive in two covers":   {"no file of `docker save`", many[:2], twice},
		"a layer in two covers":      {"sha256", append(many[:2:2], file{name: "l", body: string(twice([]byte(inner)))}), nil},
		"a layer that is an archive": {"sha256", append(many[:2:2], file{name: "l", body: inner}), nil},
	} {
		data := archive(t, c.files...)
		if c.pack != nil {
			data = c.pack(data)
		}
		for _, how := range []string{"", "gzip"} {
			s, path := open(t), filepath.Join(t.TempDir(), "image.tar")
			packed := data
			if how != "" {
				packed = compress(t, how, data)
			}
			if err := os.WriteFile(path, packed, 0o600); err != nil {
				t.Fatal(err)
			}
			i, _, err := s.Resolve(t.Context(), "", pando.Image{Reference: "docker-archive:" + path})
			if err == nil { // a layer is compared with the configuration as it is unpacked
				err = s.Pull(t.Context(), i, nil)
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s, %q: %v, want %q", name, how, err, c.want)
			}
			if left, err := filepath.Glob(filepath.Join(s.blobs(), ".new-*")); err != nil || len(left) > 0 {
				t.Errorf("%s: %v stay (%v)", name, left, err)
			}
		}
	}
}

// An archive that its compression enlarges ends at the space that the store leaves free, and not at the
// end of the disk.
func TestAnEnlargedArchiveLeavesTheDiskItsSpace(t *testing.T) {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := io.Copy(w, io.LimitReader(zero{}, 1<<30)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	s, path := open(t), filepath.Join(t.TempDir(), "image.tar.gz")
	if err := os.WriteFile(path, packed.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(s.Dir, &st); err != nil {
		t.Fatal(err)
	}
	s.FreeMin = int64(st.Bavail)*st.Bsize - 128<<20
	_, _, err := s.Resolve(t.Context(), "", pando.Image{Reference: "docker-archive:" + path})
	if !errors.Is(err, pando.ErrStoreFull) {
		t.Errorf("%v, want the store full", err)
	}
}
