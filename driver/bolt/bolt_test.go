package bolt

import (
	"errors"
	"path/filepath"
	"testing"

	"pando.run/pando"
)

func open(t *testing.T, path string) *Store {
	t.Helper()
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestWhatIsWrittenIsThereAfterAReopen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s := open(t, path)
	o := pando.Object{ID: pando.ObjectID{1}, Kind: pando.BlobObject, Body: []byte("body")}
	if err := s.Update(t.Context(), pando.ObjectsUpdate{Objects: []pando.Object{o}, Refs: map[string]pando.ObjectID{"a/b": o.ID}}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, path)
	kind, body, err := s.Object(o.ID)
	if err != nil || kind != o.Kind || string(body) != "body" {
		t.Errorf("got %s %q, %v", kind, body, err)
	}
	if id, err := s.Ref("a/b"); err != nil || id != o.ID {
		t.Errorf("ref is %s, %v", id, err)
	}
	if refs, err := s.Refs("a/"); err != nil || len(refs) != 1 {
		t.Errorf("refs are %v, %v", refs, err)
	}
}

func TestAConditionThatFailsWritesNothing(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "state.db"))
	o := pando.Object{ID: pando.ObjectID{1}, Kind: pando.BlobObject, Body: []byte("body")}
	err := s.Update(t.Context(), pando.ObjectsUpdate{Objects: []pando.Object{o}, If: map[string]pando.ObjectID{"r": {9}}})
	if !errors.Is(err, pando.ErrConflict) {
		t.Fatalf("got %v, want ErrConflict", err)
	}
	if _, _, err := s.Object(o.ID); !errors.Is(err, pando.ErrNotFound) {
		t.Errorf("the object is there: %v", err)
	}
}

func TestPruneKeepsWhatIsKept(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "state.db"))
	a := pando.Object{ID: pando.ObjectID{1}, Kind: pando.BlobObject, Body: []byte("a")}
	b := pando.Object{ID: pando.ObjectID{2}, Kind: pando.BlobObject, Body: []byte("b")}
	if err := s.Update(t.Context(), pando.ObjectsUpdate{Objects: []pando.Object{a, b}}); err != nil {
		t.Fatal(err)
	}
	n, err := s.Prune(t.Context(), func(id pando.ObjectID) bool { return id == a.ID })
	if err != nil || n != 1 {
		t.Fatalf("pruned %d, %v", n, err)
	}
	if _, _, err := s.Object(a.ID); err != nil {
		t.Errorf("the kept object: %v", err)
	}
	if _, _, err := s.Object(b.ID); !errors.Is(err, pando.ErrNotFound) {
		t.Errorf("the other: %v", err)
	}
}
