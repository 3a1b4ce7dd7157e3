package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pando.run/pando"
)

// keep stores a snapshot with one file.
func keep(t *testing.T, s Snapshots, text string) pando.SealedSnapshot {
	t.Helper()
	st := pando.SnapshotStatus{Service: pando.DefaultService("game"), Instance: "game-1"}
	out, err := s.Keep(t.Context(), st, keys, func(dir string, st *pando.SnapshotStatus) error {
		st.StoppedSeconds = 0.25
		return os.WriteFile(filepath.Join(dir, "pages-1.img"), []byte(text), 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// keys are those of an instance.
var keys = pando.SnapshotKeys{Files: "a key of the cluster", Seal: "a key of the instance"}

func TestASnapshotIsAnImageOfOneLayer(t *testing.T) {
	s := Snapshots{Store: open(t)}
	st := keep(t, s, "memory")
	if st.Bytes != 6 || st.StoppedSeconds != 0.25 || st.Host != s.Host {
		t.Errorf("stored %+v", st)
	}
	all, err := s.Kept(st.Service)
	if err != nil || len(all) != 1 || all[0] != st {
		t.Errorf("kept %+v, %v, want %+v", all, err, st)
	}
	if all, err := s.Kept(pando.DefaultService("other")); err != nil || len(all) != 0 {
		t.Errorf("of another service %+v, %v", all, err)
	}
	root, err := s.Root(st.Digest, "")
	if err != nil || len(root.Layers) != 1 {
		t.Fatalf("%+v, %v", root, err)
	}
	b, err := os.ReadFile(filepath.Join(s.LayersDir(), root.Layers[0], "pages-1.img"))
	if err != nil || string(b) != "memory" {
		t.Errorf("its files: %q, %v", b, err)
	}
	other := pando.DefaultService("other")
	if err := s.Drop(t.Context(), other, st.Digest); !errors.Is(err, pando.ErrNotFound) {
		t.Errorf("drop it for another service: %v", err)
	}
	if err := s.Drop(t.Context(), st.Service, st.Digest); err != nil {
		t.Error(err)
	}
	if _, err := s.Root(st.Digest, ""); err == nil {
		t.Error("its files are still here")
	}
}

func TestAHostKeepsTheNewestSnapshotsOfAService(t *testing.T) {
	s := Snapshots{Store: open(t)}
	var last pando.SealedSnapshot
	for n := range pando.SnapshotsMax + 3 {
		last = keep(t, s, fmt.Sprint(n))
	}
	all, err := s.Kept(last.Service)
	if err != nil || len(all) != pando.SnapshotsMax || all[0].Digest != last.Digest {
		t.Errorf("kept %d, %v, want %d with the newest first", len(all), err, pando.SnapshotsMax)
	}
}

func TestAFreezeThatFailsLeavesNoFiles(t *testing.T) {
	s := Snapshots{Store: open(t)}
	why := errors.New("it holds a socket")
	freeze := func(string, *pando.SnapshotStatus) error { return why }
	_, err := s.Keep(t.Context(), pando.SnapshotStatus{}, keys, freeze)
	if !errors.Is(err, why) {
		t.Errorf("%v, want %v", err, why)
	}
	if left, _ := os.ReadDir(s.LayersDir()); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

// Seeds and the snapshots of operators do not displace each other.
func TestSeedsAndSnapshotsAreCountedApart(t *testing.T) {
	s := Snapshots{Store: open(t)}
	web := pando.DefaultService("web")
	keep := func(n int, seed bool) {
		t.Helper()
		_, err := s.Keep(t.Context(), pando.SnapshotStatus{Service: web, Instance: "web-1", Revision: n,
			Seed: seed}, keys, func(dir string, _ *pando.SnapshotStatus) error {
			return os.WriteFile(filepath.Join(dir, "pages"), fmt.Append(nil, n, seed), 0o600)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	keep(1, false)
	for n := range 2 * pando.SnapshotsMax {
		keep(n+2, true)
	}
	all, err := s.Kept(web)
	if err != nil {
		t.Fatal(err)
	}
	var revisions []int
	for _, st := range all {
		revisions = append(revisions, st.Revision)
	}
	slices.Sort(revisions)
	last := 2*pando.SnapshotsMax + 1
	if want := []int{1, last - 1, last}; !slices.Equal(revisions, want) {
		t.Errorf("kept revisions %v, want %v", revisions, want)
	}
}

// A host brings a snapshot from the host that has it. No registry is asked.
func TestASnapshotComesFromAnotherHost(t *testing.T) {
	a, b := Snapshots{Store: open(t)}, open(t)
	st := keep(t, a, "memory")
	b.PeerSnapshot = func(_ context.Context, h pando.Host, digest string) (pando.SealedSnapshot, error) {
		if h.Name != "host1" {
			return pando.SealedSnapshot{}, pando.ErrUnavailable
		}
		return a.Described(digest)
	}
	b.Host, b.Peer = "host2", peers(map[pando.HostName]func(string, int64) (io.ReadCloser, error){
		"host1": from(a.Store)})
	i := pando.Image{Reference: pando.SnapshotPrefix + "another instance", Digest: st.Digest}
	err := b.Pull(t.Context(), i, []pando.Host{{Name: "gone"}})
	if !errors.Is(err, pando.ErrUnavailable) || !strings.Contains(err.Error(), "snapshot ls") {
		t.Errorf("from a host that does not answer: %v", err)
	}
	if err := b.Pull(t.Context(), i, []pando.Host{{Name: "gone"}, {Name: "host1"}}); err != nil {
		t.Fatal(err)
	}
	root, err := b.Root(st.Digest, "")
	if err != nil || len(root.Layers) != 1 {
		t.Fatalf("%+v, %v", root, err)
	}
	text, err := os.ReadFile(filepath.Join(b.LayersDir(), root.Layers[0], "pages-1.img"))
	if err != nil || string(text) != "memory" {
		t.Errorf("its files: %q, %v", text, err)
	}
	all, err := Snapshots{Store: b}.Kept(st.Service)
	if err != nil || len(all) != 1 || all[0].Host != "host2" || !all[0].Copy || !keys.Seal.Proves(all[0]) {
		t.Errorf("the copy: %+v, %v", all, err)
	}
}
