package book

import (
	"os"
	"path/filepath"
	"testing"
)

// A book replaces the former one. A writer that was killed before the rename leaves the former.
func TestABookIsReplacedAtOnce(t *testing.T) {
	f := File(filepath.Join(t.TempDir(), "work.json"))
	if b, err := f.Load(); b != nil || err != nil {
		t.Fatalf("a new host has the book %q, %v", b, err)
	}
	for _, text := range []string{"first", "second"} {
		if err := f.Save([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(string(f)+".new", []byte("ha"), 0o600); err != nil {
		t.Fatal(err)
	}
	if b, err := f.Load(); string(b) != "second" || err != nil {
		t.Errorf("the book is %q, %v; want second", b, err)
	}
	if err := File(filepath.Join(t.TempDir(), "gone", "work.json")).Save(nil); err == nil {
		t.Error("a book in a folder that is gone was saved")
	}
}
