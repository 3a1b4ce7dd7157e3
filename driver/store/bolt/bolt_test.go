package bolt

import (
	"bytes"
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"go.etcd.io/bbolt"

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
	if err := s.Update(t.Context(), pando.ObjectsUpdate{Objects: []pando.Object{o},
		Refs: map[string]pando.ObjectID{"a/b": o.ID}}); err != nil {
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

func TestBodiesOfEveryLength(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s := open(t, path)
	var all []pando.Object
	for n, size := range []int{0, 1, inlineBytesMax, inlineBytesMax + 1, pieceBytesMax - 1,
		pieceBytesMax, pieceBytesMax + 1, 16, 5*pieceBytesMax + 3, 1 << 20} {
		body := bytes.Repeat([]byte{byte('a' + n)}, size)
		all = append(all, pando.Object{ID: pando.ObjectID{byte(n)}, Kind: pando.BlobObject, Body: body})
	}
	for range 2 { // the second update writes no object
		if err := s.Update(t.Context(), pando.ObjectsUpdate{Objects: all}); err != nil {
			t.Fatal(err)
		}
	}
	keep := all
	for len(keep) > 0 {
		for _, o := range keep {
			kind, body, err := s.Object(o.ID)
			if err != nil || kind != o.Kind || !bytes.Equal(body, o.Body) {
				t.Errorf("%d bytes: %s, %d bytes, %v", len(o.Body), kind, len(body), err)
			}
		}
		keep = keep[1:]
		n, err := s.Prune(t.Context(), func() (func(pando.ObjectID) bool, error) {
			return func(id pando.ObjectID) bool {
				return slices.ContainsFunc(keep, func(o pando.Object) bool { return o.ID == id })
			}, nil
		})
		if n != 1 || err != nil {
			t.Errorf("pruned %d, %v", n, err)
		}
	}
	err := s.db.View(func(tx *bbolt.Tx) error {
		if n := tx.Bucket(piecesBucket).Stats().KeyN; n != 0 {
			t.Errorf("%d pieces are left of nothing", n)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestAConditionThatFailsWritesNothing(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "state.db"))
	o := pando.Object{ID: pando.ObjectID{1}, Kind: pando.BlobObject, Body: []byte("body")}
	err := s.Update(t.Context(),
		pando.ObjectsUpdate{Objects: []pando.Object{o}, If: map[string]pando.ObjectID{"r": {9}}})
	if !errors.Is(err, pando.ErrConflict) {
		t.Fatalf("got %v, want ErrConflict", err)
	}
	if _, _, err := s.Object(o.ID); !errors.Is(err, pando.ErrNotFound) {
		t.Errorf("the object is there: %v", err)
	}
}

func TestPruneKeepsWhatIsKeptAndWhatIsWrittenMeanwhile(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "state.db"))
	kept := pando.Object{ID: pando.ObjectID{1}, Kind: pando.BlobObject, Body: []byte("kept")}
	gone := pando.Object{ID: pando.ObjectID{2}, Kind: pando.BlobObject, Body: []byte("gone")}
	again := pando.Object{ID: pando.ObjectID{3}, Kind: pando.BlobObject, Body: []byte("written again")}
	fresh := pando.Object{ID: pando.ObjectID{4}, Kind: pando.BlobObject, Body: []byte("fresh")}
	all := []pando.Object{kept, gone, again}
	for n := range 3 * lookMax { // more than one scan and more than one write
		id := pando.ObjectID{5, byte(n >> 8), byte(n)}
		all = append(all, pando.Object{ID: id, Kind: pando.BlobObject, Body: []byte("x")})
	}
	if err := s.Update(t.Context(), pando.ObjectsUpdate{Objects: all}); err != nil {
		t.Fatal(err)
	}
	n, err := s.Prune(t.Context(), func() (func(pando.ObjectID) bool, error) {
		err := s.Update(t.Context(), pando.ObjectsUpdate{Objects: []pando.Object{again, fresh}})
		return func(id pando.ObjectID) bool { return id == kept.ID }, err
	})
	if want := 1 + 3*lookMax; err != nil || n != want {
		t.Fatalf("pruned %d, %v; want %d", n, err, want)
	}
	for _, o := range []pando.Object{kept, again, fresh} {
		if _, body, err := s.Object(o.ID); err != nil || string(body) != string(o.Body) {
			t.Errorf("%s is %q, %v", o.Body, body, err)
		}
	}
	if _, _, err := s.Object(gone.ID); !errors.Is(err, pando.ErrNotFound) {
		t.Errorf("the other: %v", err)
	}
	if n, err := s.Prune(t.Context(), func() (func(pando.ObjectID) bool, error) {
		return nil, errors.New("no")
	}); n != 0 || err == nil {
		t.Errorf("a prune without the live roots deleted %d, %v", n, err)
	}
}

func TestTheCacheIsBounded(t *testing.T) {
	var c cache
	for n := range 1000 {
		c.put(pando.Object{
			ID: pando.ObjectID{byte(n >> 8), byte(n)}, Kind: pando.TreeObject, Body: make([]byte, 64<<10),
		})
	}
	total := 0
	for _, m := range []map[pando.ObjectID]pando.Object{c.young, c.old} {
		for _, o := range m {
			total += len(o.Body)
		}
	}
	if _, ok := c.get(pando.ObjectID{999 >> 8, 999 & 0xff}); !ok || total > cacheBytesMax {
		t.Errorf("the newest is there: %v; %d bytes are kept", ok, total)
	}
}
