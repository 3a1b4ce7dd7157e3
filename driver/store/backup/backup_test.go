package backup

import (
	"archive/tar"
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

func text(s string) func(io.Writer) error {
	return func(w io.Writer) error { _, err := io.WriteString(w, s); return err }
}

func write(t *testing.T, passphrase string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "b")
	w, err := Create(path, passphrase)
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]string{
		StoreFile: "the store", TrustFile("authority.pem"): "the key", StatesFile("h1"): "the states",
		VolumesFile("h1"): "the volumes",
	} {
		if err := w.Add(name, text(s)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(Manifest{Cluster: "c", Generation: 3, Revision: 9}); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestABackupIsReadAsItWasWritten(t *testing.T) {
	for _, passphrase := range []string{"", "correct horse"} {
		path, dir := write(t, passphrase), t.TempDir()
		m, err := Extract(path, passphrase, dir)
		if err != nil || m.Cluster != "c" || m.Generation != 3 || len(m.Parts) != 4 {
			t.Fatalf("%+v, %v", m, err)
		}
		got, err := os.ReadFile(filepath.Join(dir, "states", "h1.db"))
		if err != nil || string(got) != "the states" {
			t.Errorf("%q, %v", got, err)
		}
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("the backup has mode %v, %v", st.Mode(), err)
		}
		whole, _ := os.ReadFile(path)
		if passphrase != "" && bytes.Contains(whole, []byte("the key")) {
			t.Error("the encrypted backup shows the authority's key")
		}
		left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "*"))
		hidden, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".*"))
		if len(left)+len(hidden) != 1 {
			t.Errorf("left behind: %v %v", left, hidden)
		}
	}
}

func TestAWrongPassphraseOpensNothing(t *testing.T) {
	path := write(t, "right")
	for _, wrong := range []string{"", "wrong"} {
		if _, err := Extract(path, wrong, t.TempDir()); !errors.Is(err, pando.ErrForbidden) {
			t.Errorf("passphrase %q: %v", wrong, err)
		}
	}
}

// A backup is known by its first entry, also if it is encrypted. Any other file is of another
// program, also one beside it with the ending of a draft.
func TestABackupKnowsItsOwnFiles(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.WriteFile(at("diary"), []byte("monday"), 0o600),
		os.WriteFile(at("open.new"), []byte("monday"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for name, passphrase := range map[string]string{"open": "", "sealed": "right"} {
		w, err := Create(at(name), passphrase)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(w.Add(StoreFile, text("the store")), w.Close(Manifest{})); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		file, passphrase string
		want             bool
	}{
		{"open", "", true}, {"open", "any", true}, {"sealed", "right", true}, {"sealed", "wrong", false},
		{"sealed", "", false}, {"diary", "", false}, {"none", "", false}, {".", "", false},
	} {
		if got := Wrote(at(c.file), c.passphrase); got != c.want {
			t.Errorf("%s with passphrase %q: %t", c.file, c.passphrase, got)
		}
	}
	if left, err := os.ReadFile(at("open.new")); err != nil || string(left) != "monday" {
		t.Errorf("the file beside the backup is %q, %v", left, err)
	}
}

// A backup that was cut off or changed anywhere is refused.
func TestADamagedBackupIsRefused(t *testing.T) {
	path := write(t, "")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	try := func(b []byte) error {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Extract(path, "", t.TempDir())
		return err
	}
	// The manifest comes last. Only zeros follow its end.
	end := bytes.LastIndexByte(whole, '}')
	for n := 0; n <= end; n += 97 {
		if err := try(whole[:n]); !errors.Is(err, pando.ErrInvalid) {
			t.Errorf("cut off at %d of %d: %v", n, len(whole), err)
		}
	}
	for _, part := range []string{"the store", "the key", "the states"} {
		if err := try(bytes.Replace(whole, []byte(part), []byte(part[:len(part)-1]+"X"), 1)); !errors.Is(
			err, pando.ErrInvalid) {
			t.Errorf("with a change to %q: %v", part, err)
		}
	}
}

// FuzzExtract: no archive writes outside of its folder.
func FuzzExtract(f *testing.F) {
	for _, name := range []string{
		"../out", "/etc/x", "trust/../../out", "states/", "trust/a/b", "store.db",
	} {
		f.Add(name, []byte("x"))
	}
	f.Fuzz(func(t *testing.T, name string, body []byte) {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		if w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(body)),
			Typeflag: tar.TypeReg}) != nil {
			return
		}
		_, _ = w.Write(body)
		_ = w.Close()
		dir := t.TempDir()
		in := filepath.Join(dir, "in")
		if err := os.MkdirAll(in, 0o700); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "b")
		if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Extract(path, "", in); err == nil {
			t.Errorf("an archive without a manifest is accepted: %q", name)
		}
		all, _ := filepath.Glob(filepath.Join(dir, "*"))
		if len(all) != 2 {
			t.Errorf("%q wrote %v", name, all)
		}
	})
}

// A full disk is named once.
func TestAFullDiskIsNamedOnce(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a tmpfs needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("a tmpfs: %v", err)
	}
	defer func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}()
	w, err := Create(filepath.Join(dir, "backup"), "")
	if err != nil {
		t.Fatal(err)
	}
	err = w.Add(StoreFile, func(to io.Writer) error {
		_, err := io.CopyN(to, rand.Reader, 1<<20)
		return err
	})
	w.Abort()
	if !errors.Is(err, unix.ENOSPC) || strings.Count(err.Error(), "no space left") != 1 {
		t.Errorf("a full disk is %v", err)
	}
}
