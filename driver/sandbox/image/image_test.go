package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// file is one entry of a layer in a test.
type file struct {
	name string
	body string
	kind byte // 0: a file
	link string
	mode int64
	uid  int
	pax  map[string]string
}

// archive makes the tar archive of a layer.
func archive(t testing.TB, files ...file) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Typeflag: f.kind, Linkname: f.link, Mode: f.mode, Uid: f.uid,
			Gid: f.uid, Size: int64(len(f.body)), ModTime: time.Unix(1e9, 0), PAXRecords: f.pax}
		if f.kind == 0 {
			h.Typeflag = tar.TypeReg
		}
		if f.mode == 0 {
			h.Mode = 0o755
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, f.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func gzipped(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func zstandard(t testing.TB, b []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll(b, nil)
}

// open returns an empty store.
func open(t testing.TB) *Store {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: whiteouts are devices, and files have owners")
	}
	s, err := Open(Config{Dir: filepath.Join(t.TempDir(), "images"), Host: "host1",
		Architecture: "amd64", Clock: &hurried{}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// layout is an image layout in the making.
type layout struct {
	dir   string
	index v1.IndexManifest
}

func newLayout(t testing.TB) *layout {
	t.Helper()
	l := &layout{dir: t.TempDir(), index: v1.IndexManifest{SchemaVersion: 2}}
	if err := os.MkdirAll(filepath.Join(l.dir, "blobs/sha256"), 0o755); err != nil {
		t.Fatal(err)
	}
	return l
}

func (l *layout) blob(t testing.TB, b []byte) v1.Descriptor {
	t.Helper()
	h := hash(b)
	if err := os.WriteFile(filepath.Join(l.dir, "blobs/sha256", h.Hex), b, 0o644); err != nil {
		t.Fatal(err)
	}
	return v1.Descriptor{Digest: h, Size: int64(len(b)), MediaType: types.OCILayer}
}

// add adds an image with archives as layers, the lowest first, and returns its digest.
func (l *layout) add(t testing.TB, tag, arch string, c v1.Config, archives ...[]byte) v1.Hash {
	t.Helper()
	config := v1.ConfigFile{OS: "linux", Architecture: arch, Config: c}
	m := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1}
	for _, a := range archives {
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, hash(a))
		m.Layers = append(m.Layers, l.blob(t, gzipped(t, a)))
	}
	m.Config = l.blob(t, marshal(t, config))
	m.Config.MediaType = types.OCIConfigJSON
	d := l.blob(t, marshal(t, m))
	d.MediaType, d.Annotations = types.OCIManifestSchema1, map[string]string{refName: tag}
	l.index.Manifests = append(l.index.Manifests, d)
	if err := os.WriteFile(filepath.Join(l.dir, "index.json"), marshal(t, l.index),
		0o644); err != nil {
		t.Fatal(err)
	}
	return d.Digest
}

func marshal(t testing.TB, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// pulled resolves and pulls an image.
func pulled(t testing.TB, s *Store, reference string) (pando.Image, pando.ImageConfig) {
	t.Helper()
	from := pando.Image{Reference: reference}
	from.Inside = !from.OfFiles()
	i, c, err := s.Resolve(context.Background(), "", from)
	if err == nil {
		err = s.Pull(context.Background(), i, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	return i, c
}

// unpacked unpacks one archive and returns its folder.
func unpackOne(t testing.TB, s *Store, packed, plain []byte) (string, error) {
	t.Helper()
	d := v1.Descriptor{Digest: hash(packed), Size: int64(len(packed))}
	if err := os.WriteFile(s.blob(d.Digest), packed, 0o600); err != nil {
		t.Fatal(err)
	}
	return s.layer(hash(plain)), s.unpack(context.Background(), d, hash(plain),
		&allowance{bytes: s.UnpackedMax})
}

func TestAnImageOfALayoutIsPulledAndStacked(t *testing.T) {
	s, l := open(t), newLayout(t)
	low := archive(t, file{name: "etc/", kind: tar.TypeDir},
		file{name: "etc/passwd", body: "root:x:0:0::/root:/bin/sh\nweb:x:101:102::/srv/web:/bin/sh\n"},
		file{name: "etc/group", body: "web:x:102:\nlog:x:7:web,x\n"})
	high := archive(t, file{name: "bin/app", body: "#!", mode: 0o4755, uid: 7})
	top := l.add(t, "v1", "amd64", v1.Config{Entrypoint: []string{"/bin/app"}, User: "web"}, low, high)
	i, c := pulled(t, s, "oci:"+l.dir+":v1")
	if i.Digest != top.String() || i.Host != "host1" || c.User != "web" ||
		c.Entrypoint[0] != "/bin/app" {
		t.Errorf("got %+v with %+v", i, c)
	}
	r, err := s.Root(i.Digest, "web")
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{layerName(hash(high)), layerName(hash(low))}; !slices.Equal(r.Layers, want) {
		t.Errorf("layers %v, want the highest first: %v", r.Layers, want)
	}
	if r.UID != 101 || r.GID != 102 || r.Home != "/srv/web" || !slices.Equal(r.Groups, []uint32{7}) {
		t.Errorf("the user web is %+v", r)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(s.LayersDir(), r.Layers[0], "bin/app"), &st); err != nil {
		t.Fatal(err)
	}
	if st.Uid != 7 || st.Mode&0o7777 != 0o4755 || st.Mtim.Sec != 1e9 {
		t.Errorf("owner %d, mode %o, time %d", st.Uid, st.Mode, st.Mtim.Sec)
	}
	if _, err := s.Root(i.Digest, "nobody-here"); !errors.Is(err, pando.ErrInvalid) {
		t.Errorf("a user that the image has not: %v", err)
	}
}

func TestBytesAreCheckedWhileTheyAreUnpacked(t *testing.T) {
	plain := archive(t, file{name: "a", body: "b"})
	for name, packed := range map[string][]byte{
		"gzip": gzipped(t, plain), "zstd": zstandard(t, plain), "none": plain,
	} {
		s := open(t)
		if _, err := unpackOne(t, s, packed, plain); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		other := archive(t, file{name: "a", body: "c"})
		dir, err := unpackOne(t, s, packed, other)
		if !errors.Is(err, pando.ErrInvalid) || !strings.Contains(err.Error(), "wrong digest") {
			t.Errorf("%s under a wrong digest: %v", name, err)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s: a wrong layer has its name", name)
		}
		left, err := filepath.Glob(filepath.Join(s.LayersDir(), ".new-*"))
		if err != nil || len(left) > 0 {
			t.Errorf("%s: left behind: %v %v", name, left, err)
		}
	}
}

// hostile are the layers that are refused, each with a word of the reason.
var hostile = []struct {
	name  string
	files []file
	want  string
}{
	{"parent", []file{{name: "../x"}}, "leave the layer"},
	{"parent inside", []file{{name: "a/../../x"}}, "leave the layer"},
	{"through an absolute link", []file{{name: "a", kind: tar.TypeSymlink, link: "/"}, {name: "a/x"}},
		"a"},
	{"through a relative link", []file{{name: "a", kind: tar.TypeSymlink, link: "../.."},
		{name: "a/x"}},
		"a"},
	{"a folder through a link", []file{{name: "a", kind: tar.TypeSymlink, link: "../.."},
		{name: "a/x/", kind: tar.TypeDir}}, "a"},
	{"a hard link out", []file{{name: "a", kind: tar.TypeLink, link: "../../../etc/passwd"}},
		"leave the layer"},
	{"a hard link through a link", []file{{name: "d", kind: tar.TypeSymlink, link: "/etc"},
		{name: "a", kind: tar.TypeLink, link: "d/passwd"}}, "does not have"},
	{"a hard link to nothing", []file{{name: "a", kind: tar.TypeLink, link: "b"}}, "does not have"},
	{"a whiteout of everything", []file{{name: ".wh.."}}, "whiteout"},
	{"a whiteout out", []file{{name: ".wh..."}}, "whiteout"},
	{"a whiteout of nothing", []file{{name: ".wh."}}, "whiteout"},
	{"a whiteout through a link", []file{{name: "a", kind: tar.TypeSymlink, link: "/etc"},
		{name: "a/.wh.passwd"}}, "a"},
	{"the root as a file", []file{{name: "."}}, "root"},
	{"a long name", []file{{name: strings.Repeat("x", 300)}}, "leave"},
	{"a file as a folder", []file{{name: "a"}, {name: "a/b"}}, "no folder"},
}

func TestHostileLayersAreRefused(t *testing.T) {
	for _, c := range hostile {
		s := open(t)
		before := tree(t, filepath.Dir(s.Dir), s.Dir)
		plain := archive(t, c.files...)
		dir, err := unpackOne(t, s, plain, plain)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want a reason with %q", c.name, err, c.want)
		}
		if _, err := os.Lstat(dir); err == nil {
			t.Errorf("%s: the layer is there", c.name)
		}
		if after := tree(t, filepath.Dir(s.Dir), s.Dir); !slices.Equal(before, after) {
			t.Errorf("%s: files outside changed: %v, %v", c.name, before, after)
		}
	}
}

// tree lists the files below a folder, without those below another.
func tree(t testing.TB, dir, without string) (out []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if path == without {
			return filepath.SkipDir
		}
		out = append(out, path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestWhiteoutsTakeTheFormOfTheKernel(t *testing.T) {
	s := open(t)
	plain := archive(t, file{name: "d/", kind: tar.TypeDir}, file{name: "d/.wh..wh..opq"},
		file{name: "d/new"}, file{name: "e/.wh.gone"}, file{name: "e/.wh..wh.plnk"},
		file{name: "f"}, file{name: ".wh.f"}, // of this layer: it stays
		file{name: ".wh.g"}, file{name: "g/h"}, // a folder in the place of a hidden name
		file{name: "dev/console", kind: tar.TypeChar}, file{name: "pipe", kind: tar.TypeFifo})
	dir, err := unpackOne(t, s, plain, plain)
	if err != nil {
		t.Fatal(err)
	}
	isOpaque := func(name string) bool {
		b := make([]byte, 8)
		n, err := unix.Lgetxattr(filepath.Join(dir, name), opaque, b)
		return err == nil && string(b[:n]) == "y"
	}
	for name, want := range map[string]bool{"d": true, "g": true, "e": false} {
		if got := isOpaque(name); got != want {
			t.Errorf("%s is opaque: %v, want %v", name, got, want)
		}
	}
	st, err := os.Lstat(filepath.Join(dir, "e/gone"))
	if err != nil || !isWhiteout(st) {
		t.Errorf("e/gone: %v %v, want a whiteout", st, err)
	}
	for name, want := range map[string]bool{"f": true, "d/new": true, "pipe": true, "e/plnk": false,
		"dev/console": false} {
		if _, err := os.Lstat(filepath.Join(dir, name)); (err == nil) != want {
			t.Errorf("%s: %v, want there: %v", name, err, want)
		}
	}
}

func TestOnlyAttributesOfUsersAreKept(t *testing.T) {
	s := open(t)
	plain := archive(t, file{name: "a", pax: map[string]string{
		"SCHILY.xattr.user.note": "x", "SCHILY.xattr.trusted.overlay.redirect": "/etc",
		"SCHILY.xattr.security.capability": "x"}})
	dir, err := unpackOne(t, s, plain, plain)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 100)
	n, err := unix.Llistxattr(filepath.Join(dir, "a"), b)
	if err != nil {
		t.Fatal(err)
	}
	for _, no := range []string{"overlay", "capability"} {
		if strings.Contains(string(b[:n]), no) {
			t.Errorf("the file has the attributes %q", b[:n])
		}
	}
}

func TestBoundsOfALayerHold(t *testing.T) {
	s := open(t)
	s.UnpackedMax = 1000
	plain := archive(t, file{name: "a", body: strings.Repeat("x", 2000)})
	if _, err := unpackOne(t, s, gzipped(t, plain), plain); !errors.Is(err, pando.ErrTooLarge) {
		t.Errorf("a layer over its bound: %v", err)
	}
	bomb := bytes.Repeat([]byte{0}, 1<<20) // an archive that ends at once, and much after it
	if _, err := unpackOne(t, s, gzipped(t, bomb), bomb); !errors.Is(err, pando.ErrTooLarge) {
		t.Errorf("bytes after the archive: %v", err)
	}
}

func TestAnImageForAnotherMachineIsNamed(t *testing.T) {
	s, l := open(t), newLayout(t)
	l.add(t, "arm", "arm64", v1.Config{}, archive(t, file{name: "a"}))
	_, _, err := s.Resolve(context.Background(), "", pando.Image{Reference: "oci:" + l.dir})
	if !errors.Is(err, pando.ErrRefused) || !strings.Contains(err.Error(), "linux/arm64") ||
		!strings.Contains(err.Error(), "this host is linux/amd64") {
		t.Errorf("an image for arm64: %v", err)
	}
}

func FuzzUnpack(f *testing.F) {
	for _, c := range hostile {
		f.Add(archive(f, c.files...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s := open(t)
		s.UnpackedMax = 1 << 20
		before := tree(t, filepath.Dir(s.Dir), s.Dir)
		dir, err := unpackOne(t, s, b, b)
		if _, there := os.Lstat(dir); (there == nil) != (err == nil) {
			t.Errorf("the layer is there: %v, after %v", there == nil, err)
		}
		if after := tree(t, filepath.Dir(s.Dir), s.Dir); !slices.Equal(before, after) {
			t.Errorf("files outside changed: %v, %v", before, after)
		}
		left, _ := filepath.Glob(filepath.Join(s.LayersDir(), ".new-*"))
		if len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	})
}

// One odd entry does not refuse an image: a device outside /dev and an entry of an unknown type are
// left out and counted. A device hides what the layers below have in its place, as it would itself.
func TestOddEntriesAreLeftOut(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, as the agent: files get their owners")
	}
	plain := archive(t, file{name: "chroot/dev/null", kind: tar.TypeChar},
		file{name: "sda", kind: tar.TypeBlock}, file{name: "volume", kind: 'V'}, file{name: "app"})
	files, _, err := v1.SHA256(bytes.NewReader(plain))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	done, err := task{Files: files.String(), Bytes: 1 << 20}.unpackTo(t.Context(), dir,
		bytes.NewReader(plain))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"device chroot/dev/null", "device sda", `volume of type 'V'`}
	if !slices.Equal(done.Without, want) {
		t.Errorf("it leaves out %q, want %q", done.Without, want)
	}
	for name, hides := range map[string]bool{"chroot/dev/null": true, "sda": true, "app": false} {
		st, err := os.Lstat(filepath.Join(dir, name))
		if err != nil || isWhiteout(st) != hides {
			t.Errorf("%s is %v (%v), and hides: %t", name, st, err, hides)
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, "volume")); err == nil {
		t.Error("an entry of an unknown type is there")
	}
}
