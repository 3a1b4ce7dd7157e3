package image

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"pando.run/pando"
)

// compressors pack a file. The standard library only reads bzip2.
var compressors = map[string]func(io.Writer) (io.WriteCloser, error){
	"gzip": func(w io.Writer) (io.WriteCloser, error) { return gzip.NewWriter(w), nil },
	"zstd": func(w io.Writer) (io.WriteCloser, error) { return zstd.NewWriter(w) },
	"xz":   func(w io.Writer) (io.WriteCloser, error) { return xz.NewWriter(w) },
}

func compress(t *testing.T, how string, plain []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := compressors[how](&b)
	if err == nil {
		_, err = w.Write(plain)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// A compressed archive of `docker save` is the same image as the archive. A compression that is
// not read has its name in the error.
func TestACompressedArchiveIsTheSameImage(t *testing.T) {
	img, err := random.Image(1000, 2)
	if err == nil {
		img, err = mutate.ConfigFile(img, configFor(t, img, "amd64"))
	}
	if err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag("web:v1")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "image.tar")
	if err := tarball.WriteToFile(file, tag, img); err != nil {
		t.Fatal(err)
	}
	want, _ := pulled(t, open(t), "docker-archive:"+file)
	plain, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	write := func(data []byte) {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for how := range compressors {
		s := open(t)
		write(compress(t, how, plain))
		if got, _ := pulled(t, s, "docker-archive:"+file); got.Digest != want.Digest {
			t.Errorf("by %s it is %s, want %s", how, got.Digest, want.Digest)
		}
		if left, err := filepath.Glob(filepath.Join(s.blobs(), ".new-*")); err != nil || len(left) > 0 {
			t.Errorf("by %s, %v stay (%v)", how, left, err)
		}
	}
	for data, want := range map[string]string{
		"\x04\x22\x4d\x18xxxxxx": "compressed by lz4: compress it by gzip, zstd, xz or bzip2",
		"PK\x03\x04xxxxxx":       "compressed by zip",
		"\x1f\x8bxxxxxxxxxxxx":   "gzip",
		string(plain[:700]):      "no file of `docker save`",
	} {
		write([]byte(data))
		_, _, err := open(t).Resolve(t.Context(), "", pando.Image{Reference: "docker-archive:" + file})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", data[:8], err, want)
		}
	}
}

// bzipped is "pando\n", packed by bzip2.
const bzipped = "QlpoOTFBWSZTWTzq7ncAAALBgAAQJAHAACAAMMAIYaUKGF3JFOFCQPOrudw="

// Layers come by each compression.
func TestLayersComeByEachCompression(t *testing.T) {
	plain := archive(t, file{name: "app", body: "x"})
	for how := range compressors {
		dir, err := unpackOne(t, open(t), compress(t, how, plain), plain)
		if err != nil {
			t.Errorf("%s: %v", how, err)
		} else if _, err := os.Lstat(filepath.Join(dir, "app")); err != nil {
			t.Errorf("%s: %v", how, err)
		}
	}
	packed, err := base64.StdEncoding.DecodeString(bzipped)
	if err != nil {
		t.Fatal(err)
	}
	r, err := decompress(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(r); err != nil || string(text) != "pando\n" {
		t.Errorf("bzip2: %q, %v", text, err)
	}
}

// A file that asks for a large dictionary is refused before the memory is taken.
func TestALargeDictionaryIsRefused(t *testing.T) {
	var b bytes.Buffer
	w, err := xz.WriterConfig{DictCap: 256 << 20}.NewWriter(&b)
	if err == nil {
		_, err = w.Write([]byte("x"))
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := decompress(bytes.NewReader(b.Bytes())); !errors.Is(err, pando.ErrTooLarge) {
		t.Errorf("a dictionary of 256 MiB: %v", err)
	}
	small := compress(t, "xz", []byte("x"))
	if n := xzDictionary(small); n != 8<<20 {
		t.Errorf("the dictionary has %d bytes", n)
	}
	for n := range small {
		_ = xzDictionary(small[:n]) // no end of a file is a panic
	}
}

// SHELL of an image starts its shell commands, and root needs no /etc/passwd.
func TestShellAndRootOfAnImage(t *testing.T) {
	f := &v1.ConfigFile{Config: v1.Config{Shell: []string{"/busybox/sh", "-ec"},
		Healthcheck: &v1.HealthConfig{Test: []string{"CMD-SHELL", "test -e /ok"}}}}
	if got := strings.Join(configOf(f).Health.Live.Command, "|"); got != "/busybox/sh|-ec|test -e /ok" {
		t.Errorf("the probe is %s", got)
	}
	for _, word := range []string{"root", "root:root", "0"} {
		if r, err := identify(word, "", ""); err != nil || r.UID != 0 || r.GID != 0 {
			t.Errorf("%s is %+v, %v", word, r, err)
		}
	}
	if r, err := identify("root", "root:x:7:8::/r:/bin/sh\n", ""); err != nil || r.UID != 7 {
		t.Errorf("root of /etc/passwd is %+v, %v", r, err)
	}
	if _, err := identify("other", "", ""); err == nil {
		t.Error("a user that nothing names is one")
	}
}
