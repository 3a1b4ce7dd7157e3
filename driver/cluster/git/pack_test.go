package git

import (
	"bytes"
	"io"
	"testing"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	memorystore "github.com/go-git/go-git/v5/storage/memory"
	"pgregory.net/rapid"

	"pando.run/pando"
	"pando.run/pando/state"
)

// A pack has every object with its kind and body, of any size. Another implementation of git reads
// it.
func TestAPackIsReadByAnotherImplementation(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		objects := newMemory()
		u := pando.ObjectsUpdate{}
		want := map[plumbing.Hash][]byte{}
		var list []pando.ObjectID
		for range rapid.IntRange(0, 8).Draw(rt, "objects") {
			// Sizes around the borders of the size's encoding: 4 bits, then 7 each.
			size := rapid.SampledFrom([]int{0, 1, 15, 16, 127, 128, 2047, 2048, 70_000}).Draw(rt, "size")
			body := bytes.Repeat([]byte{rapid.Byte().Draw(rt, "byte")}, size)
			hash := plumbing.ComputeHash(plumbing.BlobObject, body)
			if _, twice := want[hash]; twice {
				continue
			}
			id := pando.ObjectID(hash)
			u.Objects = append(u.Objects, pando.Object{ID: id, Kind: pando.BlobObject, Body: body})
			list, want[hash] = append(list, id), body
		}
		if err := objects.Update(t.Context(), u); err != nil {
			rt.Fatal(err)
		}
		var pack bytes.Buffer
		if err := writePack(t.Context(), &pack, objects, list); err != nil {
			rt.Fatal(err)
		}
		store := memorystore.NewStorage()
		p, err := packfile.NewParserWithStorage(packfile.NewScanner(bytes.NewReader(pack.Bytes())), store)
		if err != nil {
			rt.Fatal(err)
		}
		sum, err := p.Parse()
		if err != nil {
			rt.Fatal(err)
		}
		if end := pack.Bytes()[pack.Len()-len(sum):]; !bytes.Equal(end, sum[:]) {
			rt.Fatalf("the pack ends with %x, want %s", end, sum)
		}
		if len(store.Objects) != len(list) {
			rt.Fatalf("%d objects were read, want %d", len(store.Objects), len(list))
		}
		for hash, body := range want {
			if got := contentOf(rt, store, hash); !bytes.Equal(got, body) {
				rt.Fatalf("object %s has %d bytes, want %d", hash, len(got), len(body))
			}
		}
	})
}

// contentOf returns the body of a blob that was read.
func contentOf(t *rapid.T, store *memorystore.Storage, hash plumbing.Hash) []byte {
	o, err := store.EncodedObject(plumbing.BlobObject, hash)
	if err != nil {
		t.Fatal(err)
	}
	r, err := o.Reader()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	body, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// A client that leaves ends the pack, and an object that is missing is an error and no short pack.
func TestAPackThatCannotBeFinishedIsAnError(t *testing.T) {
	objects := newMemory()
	if err := writePack(t.Context(), io.Discard, objects, []pando.ObjectID{{1}}); err == nil {
		t.Error("a missing object is left out")
	}
	s := newSite(t)
	s.push(s.branch, "first")
	var list []pando.ObjectID
	walk := state.Walk{Objects: s.objects}
	err := walk.From([]pando.ObjectID{s.main}, func(_ pando.ObjectKind, id pando.ObjectID) error {
		list = append(list, id)
		return nil
	})
	s.ok(err)
	if err := writePack(t.Context(), full{}, s.objects, list); err == nil {
		t.Error("a client that has left gets a pack")
	}
}

// full is a connection that is closed.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }
