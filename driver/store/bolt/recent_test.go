package bolt

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/bbolt"
	"pgregory.net/rapid"

	"pando.run/pando"
)

// file is a store that is reopened, settled and pruned at random, with a map of the expected
// objects.
type file struct {
	*rapid.T
	path  string
	store *Store
	want  map[pando.ObjectID]pando.Object
	gone  map[pando.ObjectID]bool
	ids   []pando.ObjectID // of want, in the order of writing
	names int
}

func (f *file) open() {
	var err error
	if f.store, err = Open(f.path); err != nil {
		f.Fatal(err)
	}
	f.store.db.NoSync = true
}

// object draws a new object, or one that differs in a few bytes from an existing one.
func (f *file) object() pando.Object {
	f.names++
	o := pando.Object{Kind: rapid.SampledFrom([]pando.ObjectKind{pando.BlobObject, pando.TreeObject,
		pando.CommitObject}).Draw(f.T, "kind")}
	binary.BigEndian.PutUint64(o.ID[rapid.IntRange(0, 4).Draw(f.T, "where"):],
		uint64(f.names)<<32|uint64(rapid.Uint32().Draw(f.T, "id")))
	size := rapid.SampledFrom([]int{0, 1, 100, inlineBytesMax, inlineBytesMax + 1, 1000, wholeBytesMax,
		wholeBytesMax + 1, 20_000}).Draw(f.T, "size")
	o.Body = bytes.Repeat([]byte{byte('a' + f.names%26)}, size)
	if len(f.ids) > 0 && rapid.IntRange(0, 2).Draw(f.T, "derived") > 0 {
		base := f.want[rapid.SampledFrom(f.ids).Draw(f.T, "base")] // possibly a deleted one
		o.Base, o.Body, o.Splices = base.ID, nil, nil
		for rest := base.Body; len(rest) > 0 && len(o.Splices) < 3; {
			s := pando.Splice{Keep: rapid.IntRange(0, len(rest)).Draw(f.T, "keep"),
				Put: rapid.IntRange(0, 30).Draw(f.T, "put")}
			s.Drop = min(len(rest)-s.Keep, rapid.IntRange(0, 30).Draw(f.T, "drop"))
			o.Body = append(append(o.Body, rest[:s.Keep]...), bytes.Repeat([]byte{'#'}, s.Put)...)
			o.Splices, rest = append(o.Splices, s), rest[s.Keep+s.Drop:]
			if len(rest) == 0 || len(o.Splices) == 3 {
				o.Body = append(o.Body, rest...)
			}
		}
	}
	return o
}

func (f *file) write() {
	var all []pando.Object
	for range rapid.IntRange(1, 5).Draw(f.T, "objects") {
		all = append(all, f.object())
	}
	for _, id := range f.ids { // a deleted object may be written again
		if f.gone[id] && len(all)%2 == 0 {
			all = append(all, f.want[id])
			break
		}
	}
	f.update(all...)
}

func (f *file) update(all ...pando.Object) {
	if err := f.store.Update(f.Context(), pando.ObjectsUpdate{Objects: all}); err != nil {
		f.Fatal(err)
	}
	for _, o := range all {
		delete(f.gone, o.ID)
		if _, ok := f.want[o.ID]; !ok {
			f.ids = append(f.ids, o.ID)
		}
		f.want[o.ID] = o
	}
}

// dying is a context that ends after a number of calls of Err.
type dying struct {
	context.Context
	left int
}

func (d *dying) Err() error {
	if d.left--; d.left < 0 {
		return context.Canceled
	}
	return nil
}

// prune keeps some objects and deletes others. Meanwhile it rewrites some of the deleted objects,
// and writes objects that differ little from deleted ones. The prune may be cancelled at any point.
func (f *file) prune() {
	keep, dead := map[pando.ObjectID]bool{}, map[pando.ObjectID]bool{}
	for _, id := range f.ids {
		if !f.gone[id] && rapid.Bool().Draw(f.T, "dead") {
			dead[id] = true
		} else {
			keep[id] = true
		}
	}
	ctx := &dying{f.Context(), rapid.SampledFrom([]int{0, 1, 2, 3, 1000}).Draw(f.T, "given up after")}
	n, err := f.store.Prune(ctx, func() (func(pando.ObjectID) bool, error) {
		for range rapid.IntRange(0, 2).Draw(f.T, "meanwhile") {
			if len(dead) == 0 {
				break
			}
			ids := slices.SortedFunc(maps.Keys(dead),
				func(a, b pando.ObjectID) int { return bytes.Compare(a[:], b[:]) })
			again, base := ids[0], f.want[rapid.SampledFrom(ids).Draw(f.T, "base")]
			f.names++
			f.update(f.want[again], pando.Object{
				ID: pando.ObjectID{9, byte(f.names >> 8), byte(f.names)}, Kind: pando.TreeObject,
				Body: append(bytes.Clone(base.Body), '+'), Base: base.ID,
				Splices: []pando.Splice{{Keep: len(base.Body), Put: 1}},
			})
			delete(dead, again)
		}
		return func(id pando.ObjectID) bool { return keep[id] }, nil
	})
	if errors.Is(err, context.Canceled) {
		for id := range dead { // the cancelled prune deleted some of them
			if _, _, err := f.store.Object(id); errors.Is(err, pando.ErrNotFound) {
				f.gone[id] = true
			}
		}
		return
	}
	if err != nil || n != len(dead) {
		f.Fatalf("pruned %d of %d, %v", n, len(dead), err)
	}
	maps.Copy(f.gone, dead)
}

func (f *file) settle() {
	f.store.writing.Lock()
	f.store.recent.generation++
	f.store.writing.Unlock()
	ctx := &dying{f.Context(), rapid.SampledFrom([]int{0, 1, 1000}).Draw(f.T, "given up after")}
	_, err := f.store.settle(ctx, func(pando.ObjectID) bool { return true })
	if err != nil && !errors.Is(err, context.Canceled) {
		f.Fatal(err)
	}
}

func (f *file) check() {
	for _, id := range f.ids {
		kind, body, err := f.store.Object(id)
		switch o := f.want[id]; {
		case f.gone[id]:
			if !errors.Is(err, pando.ErrNotFound) {
				f.Fatalf("%s, which was deleted: %v", id, err)
			}
		case err != nil || kind != o.Kind || !bytes.Equal(body, o.Body):
			f.Fatalf("%s is a %s of %d bytes, %v; want a %s of %d",
				id, kind, len(body), err, o.Kind, len(o.Body))
		}
	}
}

// pieces compares the number of pieces in the file with the number that its objects need.
func (f *file) pieces() {
	want := 0
	err := f.store.db.View(func(tx *bbolt.Tx) error {
		count := func(_, value []byte) error {
			_, size, there := place(value)
			if there {
				want += (int(size) + pieceBytesMax - 1) / pieceBytesMax
			}
			return nil
		}
		for _, y := range f.store.recent.of {
			_ = count(nil, y.value)
		}
		if err := tx.Bucket(objectsBucket).ForEach(count); err != nil {
			return err
		}
		if n := tx.Bucket(piecesBucket).Stats().KeyN; n != want {
			return fmt.Errorf("%d pieces, want %d", n, want)
		}
		for err := range tx.Check() {
			return err
		}
		return nil
	})
	if err != nil {
		f.Fatal(err)
	}
}

// The test writes, derives, settles, prunes and reopens at random, and cancels some settles and
// prunes. Written objects read back. Pruned objects are gone and leave no pieces.
func TestWhatIsWrittenReadsBackWhateverIsMovedAndPruned(t *testing.T) {
	defer func(n int) { settleMin = n }(settleMin)
	settleMin = 2
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		f := &file{T: rt, path: filepath.Join(t.TempDir(), fmt.Sprint(n)),
			want: map[pando.ObjectID]pando.Object{}, gone: map[pando.ObjectID]bool{}}
		f.open()
		defer func() { f.store.Close() }()
		for range rapid.IntRange(5, 40).Draw(rt, "steps") {
			switch rapid.SampledFrom([]string{"write", "write", "write", "settle", "prune", "open"}).Draw(rt,
				"step") {
			case "write":
				f.write()
			case "settle":
				f.settle()
			case "prune":
				f.prune()
			case "open":
				if err := f.store.Close(); err != nil {
					rt.Fatal(err)
				}
				f.open()
			}
			f.store.cache.clear()
			f.check()
		}
		for id := range f.want {
			f.gone[id] = true
		}
		if _, err := f.store.Prune(rt.Context(), func() (func(pando.ObjectID) bool, error) {
			return func(pando.ObjectID) bool { return false }, nil
		}); err != nil {
			rt.Fatal(err)
		}
		f.check()
		f.pieces()
	})
}

// The chain of deltas is bounded for a body that changes a little again and again.
func TestDeltasAreBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s := open(t, path)
	last := pando.Object{
		ID: pando.ObjectID{1}, Kind: pando.TreeObject, Body: bytes.Repeat([]byte("x"), 10_000),
	}
	var all []pando.Object
	for n := range 3*deltasMax + 3 {
		if err := s.Update(t.Context(), pando.ObjectsUpdate{Objects: []pando.Object{last}}); err != nil {
			t.Fatal(err)
		}
		all = append(all, last)
		last = pando.Object{
			ID: pando.ObjectID{2, byte(n)}, Kind: pando.TreeObject,
			Body: append(bytes.Clone(last.Body), byte(n)),
			Base: last.ID, Splices: []pando.Splice{{Keep: len(last.Body), Put: 1}},
		}
	}
	for range 2 {
		most := 0
		for _, y := range s.recent.of {
			most = max(most, y.deltas)
		}
		if most != deltasMax {
			t.Errorf("up to %d deltas, want %d", most, deltasMax)
		}
		for _, o := range all {
			s.cache.clear()
			if _, body, err := s.Object(o.ID); err != nil || !bytes.Equal(body, o.Body) {
				t.Errorf("%s: %d bytes of %d, %v", o.ID, len(body), len(o.Body), err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open(t, path)
	}
}

// An object with wrong splices is stored whole.
func TestSplicesThatAreNotTrueAreNotUsed(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "state.db"))
	base := pando.Object{
		ID: pando.ObjectID{1}, Kind: pando.TreeObject, Body: bytes.Repeat([]byte("abcd"), 1000),
	}
	all := []pando.Object{base}
	for n, splices := range [][]pando.Splice{{}, {{Keep: 100, Drop: 7, Put: 3}}, {{Keep: 5000}},
		{{Keep: 1, Drop: -1}}, {{Drop: 4000, Put: 5000}}, {{Put: 4}, {Keep: 4000, Drop: 1}}} {
		all = append(all, pando.Object{ID: pando.ObjectID{2, byte(n)}, Kind: pando.TreeObject,
			Body: bytes.Repeat([]byte("abce"), 1000), Base: base.ID, Splices: splices})
	}
	for _, o := range all {
		if err := s.Update(t.Context(), pando.ObjectsUpdate{Objects: []pando.Object{o}}); err != nil {
			t.Fatal(err)
		}
	}
	s.cache.clear()
	for _, o := range all {
		if _, body, err := s.Object(o.ID); err != nil || !bytes.Equal(body, o.Body) {
			t.Errorf("by %v: %d bytes, %v", o.Splices, len(body), err)
		}
	}
}

func FuzzDamagedGeneration(f *testing.F) {
	o := pando.Object{ID: pando.ObjectID{2}, Kind: pando.TreeObject, Body: bytes.Repeat([]byte("x"),
		1000), Base: pando.ObjectID{1}, Splices: []pando.Splice{{Keep: 10, Put: 1}}}
	value := delta(o, o.Body[1:])
	f.Add(append(binary.AppendUvarint(append([]byte{}, o.ID[:]...), uint64(len(value))), value...),
		o.Body[1:])
	f.Fuzz(func(t *testing.T, stream, base []byte) {
		for len(stream) > 0 {
			_, value, after, ok := cutEntry(stream)
			if !ok {
				return
			}
			if _, differs := baseOf(value); differs {
				if body, err := splice(value, base); err == nil && len(body) > len(value)+len(base) {
					t.Errorf("%d bytes of %d", len(body), len(value)+len(base))
				}
			}
			if len(after) >= len(stream) {
				t.Fatal("an entry without an end")
			}
			stream = after
		}
	})
}

// Recent objects settle by themselves once they are many. They stay readable meanwhile.
func TestMuchThatIsRecentIsSettled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s := open(t, path)
	s.db.NoSync = true
	var all []pando.Object
	for n := 0; n < 3*recentBytesMax/wholeBytesMax; n++ {
		o := pando.Object{ID: pando.ObjectID{byte(n * 37), byte(n >> 8), byte(n)}, Kind: pando.BlobObject,
			Body: bytes.Repeat([]byte{byte(n)}, wholeBytesMax)}
		if err := s.Update(t.Context(), pando.ObjectsUpdate{Objects: []pando.Object{o}}); err != nil {
			t.Fatal(err)
		}
		all = append(all, o)
		if _, body, err := s.Object(all[n/2].ID); err != nil || !bytes.Equal(body, all[n/2].Body) {
			t.Fatalf("%d is %d bytes, %v", n/2, len(body), err)
		}
	}
	s.settling.Wait()
	if n := s.recent.size(); n > 2*recentBytesMax {
		t.Errorf("%d bytes are recent", n)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, path)
	for _, o := range all {
		if _, body, err := s.Object(o.ID); err != nil || !bytes.Equal(body, o.Body) {
			t.Fatalf("%s is %d bytes, %v", o.ID, len(body), err)
		}
	}
}

// An update adds 200 small objects to a large store. Written directly to the object bucket, each
// took a page of its own.
func TestAnUpdateWritesFewPages(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "state.db"))
	s.db.NoSync = true
	objects := func(round, n int) (u pando.ObjectsUpdate) {
		for k := range n {
			id := pando.ObjectID{byte(k * 151), byte(k >> 8), byte(k), byte(round)}
			u.Objects = append(u.Objects,
				pando.Object{ID: id, Kind: pando.BlobObject, Body: bytes.Repeat([]byte{byte(k)}, 125)})
		}
		return u
	}
	if err := s.Update(t.Context(), objects(0, 20_000)); err != nil {
		t.Fatal(err)
	}
	before := s.db.Stats()
	if err := s.Update(t.Context(), objects(1, 200)); err != nil {
		t.Fatal(err)
	}
	after := s.db.Stats()
	if pages := after.TxStats.GetPageCount() - before.TxStats.GetPageCount(); pages > 20 {
		t.Errorf("%d pages", pages)
	}
}

// firstLayout writes a file in layout 1.
func firstLayout(t *testing.T, path string, all []pando.Object) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = db.Update(func(tx *bbolt.Tx) error {
		for _, name := range [][]byte{objectsBucket, piecesBucket, refsBucket, metaBucket} {
			if _, err := tx.CreateBucket(name); err != nil {
				return err
			}
		}
		for _, o := range all {
			value, err := inPlace(tx, o.Kind, o.Body)
			if err == nil {
				err = tx.Bucket(objectsBucket).Put(o.ID[:], value)
			}
			if err != nil {
				return err
			}
		}
		return tx.Bucket(metaBucket).Put(layoutKey, binary.BigEndian.AppendUint32(nil, 1))
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestAFileOfTheFirstLayoutGoesOn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	var all []pando.Object
	for n, size := range []int{0, 100, 300, 5000, 100_000} {
		all = append(all, pando.Object{ID: pando.ObjectID{byte(n + 1)}, Kind: pando.TreeObject,
			Body: bytes.Repeat([]byte{byte('a' + n)}, size)})
	}
	firstLayout(t, path, all)
	s := open(t, path)
	next := pando.Object{
		ID: pando.ObjectID{9}, Kind: pando.TreeObject, Body: append(bytes.Clone(all[3].Body), "new"...),
		Base: all[3].ID, Splices: []pando.Splice{{Keep: 5000, Put: 3}},
	}
	if err := s.Update(t.Context(), pando.ObjectsUpdate{Objects: []pando.Object{next}}); err != nil {
		t.Fatal(err)
	}
	if _, differs := baseOf(s.recent.of[next.ID].value); !differs {
		t.Error("an object similar to an old one is not kept as a difference")
	}
	for range 2 {
		for _, o := range append(all, next) {
			if _, body, err := s.Object(o.ID); err != nil || !bytes.Equal(body, o.Body) {
				t.Errorf("%s: %d bytes of %d, %v", o.ID, len(body), len(o.Body), err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open(t, path)
	}
	n, err := s.Prune(t.Context(), func() (func(pando.ObjectID) bool, error) {
		return func(id pando.ObjectID) bool { return id == next.ID }, nil
	})
	if _, body, missing := s.Object(next.ID); n != len(all) || err != nil || missing != nil ||
		!bytes.Equal(body, next.Body) {
		t.Errorf("pruned %d, %v; %d bytes are left, %v", n, err, len(body), missing)
	}
}

func TestAFileOfANewerLayoutIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s := open(t, path)
	err := s.db.Update(func(tx *bbolt.Tx) error {
		return tx.Bucket(metaBucket).Put(layoutKey, binary.BigEndian.AppendUint32(nil, layout+1))
	})
	if err = errors.Join(err, s.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path); err == nil || !strings.Contains(err.Error(), "upgrade pando") {
		t.Errorf("got %v", err)
	}
}
