package volume

import (
	"archive/tar"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// A file may seem to have any size. Its archive is as large as its data, and so is the file that comes
// back.
func TestASparseFileOfAVolumeIsArchivedWithoutItsHoles(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("owners need root")
	}
	const size, middle = 1 << 42, 1 << 40
	from, to := t.TempDir(), t.TempDir()
	dir := filepath.Join(from, "acme/web/data/1")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "sparse")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for at, text := range map[int64]string{0: "first", middle + 12345: "middle", size - 4: "last"} {
		if _, err := f.WriteAt([]byte(text), at); err != nil {
			t.Skip("the disk has no files of this size: ", err)
		}
	}
	var file bytes.Buffer
	if err := Archive(t.Context(), from, &file); err != nil || file.Len() > 1<<20 {
		t.Fatalf("an archive of %d bytes, %v", file.Len(), err)
	}
	packed := bytes.Clone(file.Bytes())
	if back, err := Restore(to, &file); err != nil || len(back) != 1 {
		t.Fatalf("back: %v, %v", back, err)
	}
	got, err := os.Open(filepath.Join(to, "acme/web/data/1/sparse"))
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	st, err := got.Stat()
	if err != nil || st.Size() != size || !isSparse(got) {
		t.Errorf("the file is %v, %v", st, err)
	}
	for at, text := range map[int64]string{0: "first", middle + 12345: "middle", size - 4: "last", middle / 2: "\x00"} {
		b := make([]byte, len(text))
		if _, err := got.ReadAt(b, at); err != nil || string(b) != text {
			t.Errorf("at %d it has %q, %v", at, b, err)
		}
	}
	// The offset of the first piece, beyond the file.
	at := bytes.Index(packed, []byte("first")) - pieceHead
	packed[at] = 0x7f
	if _, err := Restore(t.TempDir(), bytes.NewReader(packed)); !errors.Is(err, pando.ErrInvalid) {
		t.Errorf("a piece beyond its file: %v", err)
	}
}

// An archive never writes outside the folder of the volumes, and a damaged one leaves no part.
func TestAHostileArchiveOfVolumes(t *testing.T) {
	file := func(typ byte, name, link string) tar.Header {
		return tar.Header{Typeflag: typ, Name: name, Linkname: link, Mode: 0o644, Format: tar.FormatPAX}
	}
	home := file(tar.TypeDir, "default/web/", "")
	home.Uid = UidVolumes
	part := file(tar.TypeDir, "default/web/data/1/", "")
	for name, entries := range map[string][]tar.Header{
		"above":       {file(tar.TypeReg, "../x", "")},
		"inside out":  {file(tar.TypeReg, "default/web/data/1/../../../../x", "")},
		"absolute":    {file(tar.TypeReg, "/default/web/data/1/x", "")},
		"no tenant":   {file(tar.TypeReg, "De fault/web/data/1/x", "")},
		"a device":    {home, part, file(tar.TypeChar, "default/web/data/1/null", "")},
		"a hard link": {home, part, file(tar.TypeLink, "default/web/data/1/x", "/etc/passwd")},
		"through a link": {home, part, file(tar.TypeSymlink, "default/web/data/1/up", "../../../../.."),
			file(tar.TypeReg, "default/web/data/1/up/x", "")},
	} {
		top := t.TempDir()
		dir := filepath.Join(top, "volumes")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range entries {
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := Restore(dir, &b); err == nil {
			t.Errorf("%s: it is taken", name)
		}
		_ = filepath.WalkDir(top, func(path string, e fs.DirEntry, err error) error {
			if err == nil && !e.IsDir() || strings.HasPrefix(e.Name(), restoring) {
				t.Errorf("%s: left %s", name, path)
			}
			return err
		})
	}
}

// Two services never get one uid from an archive.
func TestAnArchiveWithAForeignUID(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("foreign owners need root")
	}
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "default/db"), 0o711); err != nil {
		t.Fatal(err)
	}
	if err := unix.Chown(filepath.Join(dir, "default/db"), UidVolumes, 0); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	h := tar.Header{Typeflag: tar.TypeDir, Name: "default/web/", Uid: UidVolumes, Mode: 0o711}
	if err := errors.Join(w.WriteHeader(&h), w.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := Restore(dir, &b); !errors.Is(err, pando.ErrConflict) {
		t.Errorf("taken: %v", err)
	}
}
