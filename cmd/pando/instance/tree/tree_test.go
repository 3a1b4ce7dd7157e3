package tree

import (
	"archive/tar"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pando.run/pando"
)

// entryOf is one entry of a hostile stream.
type entryOf struct {
	name, link, text string
	kind             byte
}

func stream(t *testing.T, entries ...entryOf) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Linkname: e.link, Typeflag: e.kind, Size: int64(len(e.text)),
			Mode: 0o4755}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(e.text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

// files lists all files below a folder.
func files(t *testing.T, dir string) (out []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rest, _ := filepath.Rel(dir, p)
			out = append(out, rest)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(out)
	return out
}

// A copy of a folder has its files, folders, links and modes, in a new place and inside a folder
// that is there.
func TestACopyIsWhole(t *testing.T) {
	from, to := filepath.Join(t.TempDir(), "-pages"), t.TempDir()
	for _, dir := range []string{from, filepath.Join(from, "sub")} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	odd := "a\nb ünï"
	for name, text := range map[string]string{"one": "1", "sub/two": "22", odd: "3"} {
		if err := os.WriteFile(filepath.Join(from, name), []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("sub/two", filepath.Join(from, "link")); err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{filepath.Join(to, "new"), to} {
		var b bytes.Buffer
		if left, err := Write(&b, from, "-pages"); err != nil || left != nil {
			t.Fatal(left, err)
		}
		if left, err := Read(&b, "-pages", target, true); err != nil || left != nil {
			t.Fatal(left, err)
		}
	}
	for _, dir := range []string{"new", "-pages"} {
		want := []string{odd, "link", "one", "sub/two"}
		if got := files(t, filepath.Join(to, dir)); !slices.Equal(got, want) {
			t.Errorf("%s has %q, want %q", dir, got, want)
		}
		text, err := os.ReadFile(filepath.Join(to, dir, "link"))
		if err != nil || string(text) != "22" {
			t.Errorf("%q, %v", text, err)
		}
		i, err := os.Stat(filepath.Join(to, dir, "one"))
		if err != nil || i.Mode().Perm() != 0o640 {
			t.Errorf("%v, %v", i, err)
		}
	}
}

// A hostile stream writes nothing outside its copy, and each refused entry is named.
func TestAHostileStreamStaysInside(t *testing.T) {
	top := t.TempDir()
	secret := filepath.Join(top, "secret")
	if err := os.WriteFile(secret, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(top, "here"), 0o755); err != nil {
		t.Fatal(err)
	}
	b := stream(t,
		entryOf{name: "in", kind: tar.TypeDir},
		entryOf{name: "in/../../secret", text: "up", kind: tar.TypeReg},
		entryOf{name: "../secret", text: "up", kind: tar.TypeReg},
		entryOf{name: secret, text: "absolute", kind: tar.TypeReg},
		entryOf{name: "other/file", text: "beside", kind: tar.TypeReg},
		entryOf{name: "inside-not", text: "beside", kind: tar.TypeReg},
		entryOf{name: "in/up", link: "..", kind: tar.TypeSymlink},
		entryOf{name: "in/far", link: top, kind: tar.TypeSymlink},
		entryOf{name: "in/hard", link: "../secret", kind: tar.TypeLink},
		entryOf{name: "in/pipe", kind: tar.TypeFifo},
		entryOf{name: "in/disk", kind: tar.TypeBlock},
		entryOf{name: "in/dir", kind: tar.TypeDir},
		entryOf{name: "in/dir/self", link: ".", kind: tar.TypeSymlink},
		entryOf{name: "in/dir/self/through", text: "ok", kind: tar.TypeReg},
		entryOf{name: "in/root", text: "suid", kind: tar.TypeReg},
	)
	left, err := Read(b, "in", filepath.Join(top, "here"), true)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"here/in/dir/self", "here/in/dir/through", "here/in/root", "secret"}
	if got := files(t, top); !slices.Equal(got, want) {
		t.Errorf("the copy has %q, want %q", got, want)
	}
	if text, err := os.ReadFile(secret); err != nil || string(text) != "mine" {
		t.Errorf("the file outside is %q, %v", text, err)
	}
	if len(left) != 10 {
		t.Errorf("left out: %d: %s", len(left), strings.Join(left, "\n"))
	}
	i, err := os.Stat(filepath.Join(top, "here/in/root"))
	if err != nil || i.Mode()&fs.ModeSetuid != 0 {
		t.Errorf("mode %v, %v", i.Mode(), err)
	}
}

// A link in the way of a copy is replaced, and never followed.
func TestALinkInTheWayIsReplaced(t *testing.T) {
	top := t.TempDir()
	outside, here := filepath.Join(top, "outside"), filepath.Join(top, "here")
	for _, dir := range []string{outside, here, filepath.Join(here, "in")} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{"in/file": "../../outside/file", "in/dir": outside,
		"one": "../outside/one"} {
		if err := os.Symlink(to, filepath.Join(here, name)); err != nil {
			t.Fatal(err)
		}
	}
	_, err := Read(stream(t, entryOf{name: "in", kind: tar.TypeDir},
		entryOf{name: "in/file", text: "1", kind: tar.TypeReg},
		entryOf{name: "in/dir", kind: tar.TypeDir},
		entryOf{name: "in/dir/file", text: "2", kind: tar.TypeReg}), "in", here, true)
	if err == nil {
		_, err = Read(stream(t, entryOf{name: "one", text: "1", kind: tar.TypeReg}), "one",
			filepath.Join(here, "one"), true)
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := files(t, outside); len(got) > 0 {
		t.Errorf("files outside: %q", got)
	}
	if got := files(t, here); !slices.Equal(got, []string{"in/dir/file", "in/file", "one"}) {
		t.Errorf("files here: %q", got)
	}
}

// A copy leaves a file that is there as it is, unless it may replace files.
func TestAFileThatIsThereStays(t *testing.T) {
	top := t.TempDir()
	mine := filepath.Join(top, "in", "file")
	if err := os.Mkdir(filepath.Dir(mine), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		to, base string
		over     bool
		want     string
	}{
		{filepath.Dir(mine), ".", false, "mine"}, {top, "in", false, "mine"}, {mine, "file", false, "mine"},
		{top, "in", true, "theirs"}, {mine, "file", true, "theirs"},
	} {
		if err := os.WriteFile(mine, []byte("mine"), 0o600); err != nil {
			t.Fatal(err)
		}
		s := stream(t, entryOf{name: c.base, kind: tar.TypeDir},
			entryOf{name: c.base + "/file", text: "theirs", kind: tar.TypeReg})
		if c.base == "file" {
			s = stream(t, entryOf{name: "file", text: "theirs", kind: tar.TypeReg})
		}
		_, err := Read(s, c.base, c.to, c.over)
		if errors.Is(err, pando.ErrExists) == c.over {
			t.Errorf("%s to %s, over %t: %v", c.base, c.to, c.over, err)
		}
		if text, err := os.ReadFile(mine); err != nil || string(text) != c.want {
			t.Errorf("%s to %s, over %t: the file is %q, %v", c.base, c.to, c.over, text, err)
		}
	}
}

func TestAnEmptyOrTornStreamIsAnError(t *testing.T) {
	if _, err := Read(&bytes.Buffer{}, "in", t.TempDir(), true); !errors.Is(err, pando.ErrNotFound) {
		t.Errorf("an empty stream: %v", err)
	}
	b := stream(t, entryOf{name: "in", text: strings.Repeat("x", 5000), kind: tar.TypeReg})
	b.Truncate(2000)
	if _, err := Read(b, "in", t.TempDir(), true); err == nil {
		t.Error("a torn stream: no error")
	}
	link := stream(t, entryOf{name: "in", link: "x", kind: tar.TypeSymlink})
	if _, err := Read(link, "in", t.TempDir(), true); !errors.Is(err, pando.ErrInvalid) {
		t.Errorf("a link alone: %v", err)
	}
}

func TestWhatCannotBeCopiedIsNamed(t *testing.T) {
	dir := t.TempDir()
	l := filepath.Join(dir, "none")
	if _, err := Write(&bytes.Buffer{}, l, "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	if got := Base("/"); got != "root" {
		t.Errorf("the name of / is %q", got)
	}
	if got := Base(dir + "/."); got != filepath.Base(dir) {
		t.Errorf("the name of %s/. is %q", dir, got)
	}
}
