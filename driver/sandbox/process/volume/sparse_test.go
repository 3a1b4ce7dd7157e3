package volume

import (
	"archive/tar"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// A file whose data cannot be found fails its archive. It would be a hole otherwise.
func TestDataThatCannotBeFoundIsAnError(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("data"), 1<<21); err != nil {
		t.Fatal(err)
	}
	start, end, ok, err := nextPiece(f, 0, 1<<21+4)
	if err != nil || !ok || start > 1<<21 || end != 1<<21+4 {
		t.Errorf("the piece %d to %d, %v, %v", start, end, ok, err)
	}
	if _, _, ok, err := nextPiece(f, end, end); ok || err != nil {
		t.Errorf("behind the end: %v, %v", ok, err)
	}
	// The kernel reads no data from a pipe by offset, as from a broken disk.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if _, _, _, err := nextPiece(r, 0, 10); err == nil {
		t.Error("a file that cannot be searched is a hole")
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := archiveSparse(tar.NewWriter(io.Discard), r, "pipe"); err == nil {
		t.Error("a file that cannot be searched is archived")
	}
}
