package bolt

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"testing"

	"pando.run/pando"
)

// A burst of commits makes the file large. Most of these commits are trimmed soon after.
func TestAFileThatIsMostlyFreeShrinksAtTheNextStart(t *testing.T) {
	defer func(was int64) { shrinkFreeMin = was }(shrinkFreeMin)
	shrinkFreeMin = 1 << 20
	path := filepath.Join(t.TempDir(), "state.db")
	reopen := func(s *Store) *Store {
		if s != nil {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
		s, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	size := func() int64 {
		st, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return st.Size()
	}
	s := reopen(nil)
	kept := map[pando.ObjectID]string{}
	fill(t, s, kept)
	large := size()
	s = reopen(s)
	if now := size(); now < large {
		t.Errorf("a file that is full went from %d to %d bytes", large, now)
	}
	if _, err := s.Prune(t.Context(), func() (func(pando.ObjectID) bool, error) {
		return func(id pando.ObjectID) bool { return kept[id] != "" }, nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(path+".new/folder", 0o700); err != nil {
		t.Fatal(err)
	}
	s = reopen(s)
	if now := size(); now < large {
		t.Errorf("the file was copied to a folder: it has %d bytes", now)
	}
	if err := os.RemoveAll(path + ".new"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+".new", []byte("of one that was killed"), 0o600); err != nil {
		t.Fatal(err)
	}
	s = reopen(s)
	defer s.Close()
	if now := size(); now > large/4 {
		t.Errorf("the file has %d of %d bytes, and a fiftieth is used", now, large)
	}
	whole(t, s, kept)
	// New pieces are numbered after those of the copied file.
	more := pando.Object{
		ID: pando.ObjectID{9, 9, 9}, Kind: pando.BlobObject, Body: make([]byte, 20<<10),
	}
	if err := s.Update(t.Context(), pando.ObjectsUpdate{Objects: []pando.Object{more}}); err != nil {
		t.Fatal(err)
	}
	whole(t, s, kept)
	if _, err := os.Stat(path + ".new"); err == nil {
		t.Error("the new file is left beside the old one")
	}
}

// whole fails the test unless the store has all kept objects and as many refs.
func whole(t *testing.T, s *Store, kept map[pando.ObjectID]string) {
	t.Helper()
	refs, err := s.Refs("")
	if err != nil || len(refs) != len(kept) {
		t.Errorf("%d refs, want %d (%v)", len(refs), len(kept), err)
	}
	for id, body := range kept {
		if kind, b, err := s.Object(id); err != nil || kind != pando.BlobObject || string(b) != body {
			t.Errorf("object %s: %s, %d bytes (%v)", id, kind, len(b), err)
		}
	}
}

// fill writes 16 MB in 40 updates. It adds the first object of each update to kept.
func fill(t *testing.T, s *Store, kept map[pando.ObjectID]string) {
	t.Helper()
	for n := range 40 {
		u := pando.ObjectsUpdate{Refs: map[string]pando.ObjectID{}}
		for m := range 50 {
			o := pando.Object{
				ID: pando.ObjectID{byte(n), byte(m), 1}, Kind: pando.BlobObject, Body: make([]byte, 8<<10),
			}
			_, _ = rand.Read(o.Body)
			if u.Objects = append(u.Objects, o); m == 0 {
				kept[o.ID] = string(o.Body)
				u.Refs["default/web/main/"+o.ID.String()] = o.ID
			}
		}
		if err := s.Update(t.Context(), u); err != nil {
			t.Fatal(err)
		}
	}
}
