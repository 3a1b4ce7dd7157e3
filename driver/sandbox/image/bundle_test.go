package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"pando.run/pando"
)

// folderOf makes a folder of files. A name that ends with / is a folder, and a body that begins
// with -> is a link.
func folderOf(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	fill(t, dir, files)
	return dir
}

func fill(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, body := range files {
		path := filepath.Join(dir, name)
		if strings.HasSuffix(name, "/") {
			if err := os.MkdirAll(path, 0o755); err != nil {
				t.Fatal(err)
			}
			continue
		}
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if to, link := strings.CutPrefix(body, "->"); link {
			err = errors.Join(err, os.Symlink(to, path))
		} else {
			err = errors.Join(err, os.WriteFile(path, []byte(body), 0o755))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func bundleOf(t testing.TB, s *Store, dir string) (pando.Bundle, []string) {
	t.Helper()
	b, left, err := s.Bundle(context.Background(), dir)
	if err != nil {
		t.Fatal(err)
	}
	return b, left
}

// content returns the files of a bundle that is on this host.
func content(t testing.TB, s *Store, b pando.Bundle) []string {
	t.Helper()
	r, err := s.Root(b.Digest, "")
	if err != nil || len(r.Layers) != 1 {
		t.Fatalf("the bundle has the layers %v: %v", r.Layers, err)
	}
	dir := filepath.Join(s.LayersDir(), r.Layers[0])
	var out []string
	for _, path := range tree(t, dir, "")[1:] { // without the folder itself
		out = append(out, strings.TrimPrefix(path, dir+"/"))
	}
	return out
}

var site = map[string]string{"website": "#!/bin/sh\n", "pages/a.html": "a", "pages/empty/": "",
	"latest": "->pages/a.html", "pando.yaml": "name: web", ".git/HEAD": "x",
	"pages/pando.yaml": "kept"}

func TestABundleHasTheFilesOfItsFolder(t *testing.T) {
	s, dir := open(t), folderOf(t, site)
	b, left := bundleOf(t, s, dir)
	if len(left) > 0 || b.Folder != dir || b.Host != "host1" {
		t.Errorf("bundle %+v, without %v", b, left)
	}
	if err := s.Pull(t.Context(), b.Image(), nil); err != nil {
		t.Fatal(err)
	}
	got := strings.Join(content(t, s, b), "\n")
	for _, want := range []string{"website", "pages/a.html", "pages/empty", "latest",
		"pages/pando.yaml"} {
		if !strings.Contains(got, want) {
			t.Errorf("%s is missing in\n%s", want, got)
		}
	}
	if strings.Contains(got, ".git") || strings.Count(got, "pando.yaml") != 1 {
		t.Errorf("the history or the spec is in\n%s", got)
	}
	all, err := s.List()
	if err != nil || len(all) != 1 || !slices.Equal(all[0].References, []string{"bundle:" + dir}) {
		t.Errorf("the store lists %+v, %v", all, err)
	}
}

// The digest follows from names, bytes, links and the execute bit alone.
func TestEqualFoldersAreOneBundle(t *testing.T) {
	s := open(t)
	rapid.Check(t, func(r *rapid.T) {
		files := rapid.MapOfN(rapid.StringMatching(`([a-c]/){0,2}[d-z]{1,3}`), rapid.StringN(0, 9, 99), 0,
			6).Draw(r, "files")
		for name := range files { // no links
			if strings.HasPrefix(files[name], "->") {
				files[name] = ""
			}
		}
		one, two := folderOf(t, files), folderOf(t, files)
		later := time.Now().Add(time.Hour)
		if err := os.Chtimes(two, later, later); err != nil {
			r.Fatal(err)
		}
		a, _ := bundleOf(t, s, one)
		b, _ := bundleOf(t, s, two)
		if a.Digest != b.Digest {
			r.Fatalf("equal folders are %s and %s", a.Digest, b.Digest)
		}
		fill(t, two, map[string]string{"zzzz": rapid.String().Draw(r, "more")})
		if b, _ := bundleOf(t, s, two); a.Digest == b.Digest {
			r.Fatalf("one file more is still %s", b.Digest)
		}
	})
}

func TestThePermissionToExecuteIsPartOfABundle(t *testing.T) {
	s, dir := open(t), folderOf(t, map[string]string{"a": "x"})
	before, _ := bundleOf(t, s, dir)
	if err := os.Chmod(filepath.Join(dir, "a"), 0o644); err != nil {
		t.Fatal(err)
	}
	if after, _ := bundleOf(t, s, dir); before.Digest == after.Digest {
		t.Error("a file that is no program any more is the same bundle")
	}
	if err := os.Chmod(filepath.Join(dir, "a"), 0o755|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	b, _ := bundleOf(t, s, dir)
	if b.Digest != before.Digest {
		t.Error("set-uid is in the bundle")
	}
}

func TestABundleNamesWhatItLeavesOut(t *testing.T) {
	s, dir := open(t), folderOf(t, map[string]string{"a": "x", "key": "secret", "own/x": "secret",
		".wh.a": "it would hide a"})
	err := errors.Join(os.Chmod(filepath.Join(dir, "key"), 0o600),
		os.Chmod(filepath.Join(dir, "own"), 0o700), unix.Mkfifo(filepath.Join(dir, "pipe"), 0o666))
	if err != nil {
		t.Fatal(err)
	}
	b, left := bundleOf(t, s, dir)
	slices.Sort(left)
	if want := []string{".wh.a", "key", "own", "pipe"}; !slices.Equal(left, want) {
		t.Errorf("without %v, want %v", left, want)
	}
	if err := s.Pull(t.Context(), b.Image(), nil); err != nil {
		t.Fatal(err)
	}
	if got := content(t, s, b); !slices.Equal(got, []string{"a"}) {
		t.Errorf("the bundle has %v", got)
	}
}

func TestBoundsOfABundleHold(t *testing.T) {
	s, dir := open(t), folderOf(t, map[string]string{"a": "x"})
	if err := os.Truncate(filepath.Join(dir, "a"), bundleBytesMax+1); err != nil { // sparse
		t.Fatal(err)
	}
	if _, _, err := s.Bundle(t.Context(), dir); !errors.Is(err, pando.ErrTooLarge) ||
		!strings.Contains(err.Error(), "MiB at a") {
		t.Errorf("a large file: %v", err)
	}
	if _, _, err := s.Bundle(t.Context(), dir+"/none"); !errors.Is(err, pando.ErrInvalid) ||
		!strings.Contains(err.Error(), "bundle: .") {
		t.Errorf("no folder: %v", err)
	}
	p := &packer{ctx: t.Context(), entries: bundleEntriesMax}
	if err := p.add(nil, "a", nil); !errors.Is(err, pando.ErrTooLarge) {
		t.Errorf("many files: %v", err)
	}
	s.FreeMin = 1 << 60
	if _, _, err := s.Bundle(t.Context(), dir); !errors.Is(err, pando.ErrStoreFull) {
		t.Errorf("without space: %v", err)
	}
	if got := names(t, s.blobs()); len(got) > 0 {
		t.Errorf("failed bundles left %v", got)
	}
}

// peers gives a store the blobs of others. Each may cut or change its answers.
func peers(others map[pando.HostName]func(digest string, at int64) (io.ReadCloser, error)) func(
	context.Context, pando.Host, string, string, int64) (io.ReadCloser, error) {
	return func(_ context.Context, h pando.Host, _, digest string, at int64) (io.ReadCloser, error) {
		if open, ok := others[h.Name]; ok {
			return open(digest, at)
		}
		return nil, errors.New("it does not answer")
	}
}

func from(s *Store) func(string, int64) (io.ReadCloser, error) {
	return func(digest string, at int64) (io.ReadCloser, error) {
		f, err := os.Open(filepath.Join(s.blobs(), strings.TrimPrefix(digest, "sha256:")))
		if err == nil {
			_, err = f.Seek(at, io.SeekStart)
		}
		return f, err
	}
}

func TestABundleComesFromAPeerThatDiesMidway(t *testing.T) {
	a, b := open(t), open(t)
	dir := folderOf(t, map[string]string{"large": strings.Repeat("0123456789abcdef", 1<<16)})
	is, _ := bundleOf(t, a, dir)
	var cut, rest atomic.Int64
	b.Host, b.Peer = "host2", peers(map[pando.HostName]func(string, int64) (io.ReadCloser, error){
		"host1": func(digest string, at int64) (io.ReadCloser, error) {
			f, err := from(a)(digest, at)
			if err != nil || !strings.HasSuffix(digest, layerOf(t, a, is).Hex) {
				return f, err
			}
			if cut.Add(1) > 1 {
				return nil, errors.New("it is dead")
			}
			return io.NopCloser(io.LimitReader(f, 300<<10)), nil
		},
		"host3": func(digest string, at int64) (io.ReadCloser, error) {
			if strings.HasSuffix(digest, layerOf(t, a, is).Hex) {
				rest.Store(at)
			}
			return from(a)(digest, at)
		},
	})
	hosts := []pando.Host{{Name: "host1"}, {Name: "host3"}, {Name: "host4"}}
	if err := b.Pull(t.Context(), is.Image(), hosts); err != nil {
		t.Fatal(err)
	}
	if rest.Load() != 300<<10 {
		t.Errorf("the second host was asked from byte %d on", rest.Load())
	}
	if got := content(t, b, is); !slices.Equal(got, []string{"large"}) {
		t.Errorf("the bundle has %v", got)
	}
}

// layerOf returns the digest of a bundle's archive.
func layerOf(t testing.TB, s *Store, b pando.Bundle) v1.Hash {
	t.Helper()
	top, err := digest(b.Digest)
	if err != nil {
		t.Fatal(err)
	}
	k, err := s.look(top)
	if err != nil {
		t.Fatal(err)
	}
	return k.manifest.Layers[0].Digest
}

func TestAWrongBundleIsNeverKept(t *testing.T) {
	a, b := open(t), open(t)
	is, _ := bundleOf(t, a, folderOf(t, map[string]string{"a": "right"}))
	b.Host, b.Peer = "host2", peers(map[pando.HostName]func(string, int64) (io.ReadCloser, error){
		"host1": func(digest string, at int64) (io.ReadCloser, error) {
			f, err := from(a)(digest, at)
			if err != nil || !strings.HasSuffix(digest, layerOf(t, a, is).Hex) {
				return f, err
			}
			defer f.Close()
			all, err := io.ReadAll(f)
			return io.NopCloser(strings.NewReader(strings.Replace(string(all), "right", "wrong", 1))), err
		},
	})
	err := b.Pull(t.Context(), is.Image(), []pando.Host{{Name: "host1"}})
	if !errors.Is(err, pando.ErrInvalid) || !strings.Contains(err.Error(), "wrong digest") ||
		!strings.Contains(err.Error(), "pull bundle ") {
		t.Errorf("wrong bytes: %v", err)
	}
	if _, err := b.Root(is.Digest, ""); !errors.Is(err, pando.ErrNotReady) {
		t.Errorf("the wrong bundle can start: %v", err)
	}
	if got := names(t, b.LayersDir()); len(got) > 0 {
		t.Errorf("it left the layers %v", got)
	}
}

func TestABundleThatFitsNoDiskIsNamed(t *testing.T) {
	a, b := open(t), open(t)
	is, _ := bundleOf(t, a, folderOf(t, map[string]string{"a": "x"}))
	b.Host, b.FreeMin = "host2", 1<<60
	b.Peer = peers(map[pando.HostName]func(string, int64) (io.ReadCloser, error){"host1": from(a)})
	err := b.Pull(t.Context(), is.Image(), []pando.Host{{Name: "host1"}})
	if !errors.Is(err, pando.ErrStoreFull) {
		t.Errorf("without space: %v", err)
	}
	b.FreeMin = 0
	if err := b.Pull(t.Context(), is.Image(), []pando.Host{{Name: "host1"}}); err != nil {
		t.Errorf("with space again: %v", err)
	}
}

func TestABundleWhoseHostIsGoneIsNamed(t *testing.T) {
	a, b := open(t), open(t)
	is, _ := bundleOf(t, a, folderOf(t, map[string]string{"a": "x"}))
	b.Host, b.Peer = "host2", peers(nil)
	err := b.Pull(t.Context(), is.Image(), []pando.Host{{Name: "host1"}})
	if !errors.Is(err, pando.ErrUnavailable) || !strings.Contains(err.Error(), "host host1") {
		t.Errorf("got %v", err)
	}
}

func TestOldBundlesAreSweptAndThoseInUseStay(t *testing.T) {
	s, dir := open(t), folderOf(t, map[string]string{"a": "0"})
	var all []pando.Bundle
	for n := range 3 {
		fill(t, dir, map[string]string{"a": fmt.Sprint(n)})
		b, _ := bundleOf(t, s, dir)
		if err := s.Pull(t.Context(), b.Image(), nil); err != nil {
			t.Fatal(err)
		}
		all = append(all, b)
	}
	s.Clock.(*hurried).ahead.Store(int64(8 * 24 * time.Hour))
	gone, err := s.Sweep(t.Context(), map[string]bool{all[1].Digest: true},
		Bounds{Age: 7 * 24 * time.Hour, Bytes: 1 << 40})
	if err != nil || len(gone) != 2 {
		t.Errorf("swept %v, %v", gone, err)
	}
	if _, err := s.Root(all[1].Digest, ""); err != nil {
		t.Errorf("the bundle in use: %v", err)
	}
	if _, err := s.Root(all[0].Digest, ""); !errors.Is(err, pando.ErrNotReady) {
		t.Errorf("an old bundle: %v", err)
	}
}
