package sighting

import (
	"os"
	"path/filepath"
	"testing"

	"pando.run/pando"
)

func TestASightingOutlivesEitherFolder(t *testing.T) {
	seen := pando.Sighting{Cluster: "c", Generation: 2, Revision: 40}
	f := Folders{t.TempDir(), t.TempDir()}
	load := func(running bool, want pando.Sighting) {
		t.Helper()
		if got, err := f.Load(running); got != want || err != nil {
			t.Errorf("loaded %+v, %v, want %+v", got, err, want)
		}
	}
	load(true, pando.Sighting{})
	if err := f.Save(seen); err != nil {
		t.Fatal(err)
	}
	load(false, seen)
	load(true, seen)
	if err := os.RemoveAll(f.Data); err != nil {
		t.Fatal(err)
	}
	load(true, seen)
	load(false, pando.Sighting{}) // nothing runs, and nothing is kept: there is nothing to protect
	seen.Revision++
	if err := f.Save(seen); err != nil {
		t.Errorf("a missing folder: %v", err)
	}
	load(true, seen)
	if err := os.MkdirAll(f.Data, 0o755); err != nil {
		t.Fatal(err)
	}
	older := `{"cluster":"c","generation":1,"revision":900}`
	if err := os.WriteFile(filepath.Join(f.Data, name), []byte(older), 0o600); err != nil {
		t.Fatal(err)
	}
	load(true, seen) // the newer generation counts
}

func TestADamagedSightingIsReportedUnlessTheOtherIsWhole(t *testing.T) {
	f := Folders{t.TempDir(), t.TempDir()}
	seen := pando.Sighting{Cluster: "c", Generation: 1, Revision: 7}
	if err := f.Save(seen); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(f.Data, name), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Load(false); err == nil {
		t.Error("a damaged file is read")
	}
	if got, err := f.Load(true); got != seen || err != nil {
		t.Errorf("loaded %+v, %v", got, err)
	}
}
