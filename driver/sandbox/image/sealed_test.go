package image

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pando.run/pando"
)

// memoryText is a text in the memory of a program. It compresses badly, so a layer would show it.
const memoryText = "kX9v2-the-secret-in-the-memory-7qLw"

// keepSealed stores an encrypted snapshot.
func keepSealed(t *testing.T, s Snapshots, key pando.SnapshotKey) pando.SealedSnapshot {
	t.Helper()
	st := pando.SnapshotStatus{Service: pando.DefaultService("game"), Instance: "game-1",
		Encrypted: true}
	keys := pando.SnapshotKeys{Files: key, Seal: "a key of the instance"}
	out, err := s.Keep(t.Context(), st, keys, func(dir string, _ *pando.SnapshotStatus) error {
		err := os.WriteFile(filepath.Join(dir, "pages-1.img"), []byte(memoryText), 0o600)
		unseen(t, s.Dir)
		return errors.Join(err, os.WriteFile(filepath.Join(dir, "pando.json"), []byte("{}"), 0o600))
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// unseen checks that no file below a folder has the text of the memory.
func unseen(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if bytes.Contains(b, []byte(memoryText)) {
			t.Errorf("%s has the memory of the program", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func givesKey(k pando.SnapshotKey) func(context.Context) (pando.SnapshotKey, error) {
	return func(context.Context) (pando.SnapshotKey, error) { return k, nil }
}

func TestAnEncryptedSnapshotIsReadableInMemoryAlone(t *testing.T) {
	s := Snapshots{Store: open(t)}
	st := keepSealed(t, s, "a key of the cluster")
	if !st.Encrypted {
		t.Errorf("stored %+v", st)
	}
	if all, err := s.Kept(st.Service); err != nil || len(all) != 1 || all[0] != st {
		t.Errorf("kept %+v, %v, want %+v", all, err, st)
	}
	unseen(t, s.Dir)
	from, done, err := s.Open(t.Context(), st.Service, st.Digest, givesKey("a key of the cluster"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(from, "pages-1.img"))
	if err != nil || string(b) != memoryText {
		t.Errorf("read %q, %v", b, err)
	}
	unseen(t, s.Dir)
	done()
	if _, err := os.Stat(filepath.Join(from, "pages-1.img")); err == nil {
		t.Error("the memory is still readable after its use")
	}
}

func TestAnotherClustersSnapshotIsRefused(t *testing.T) {
	s := Snapshots{Store: open(t)}
	st := keepSealed(t, s, "a key of the cluster")
	_, _, err := s.Open(t.Context(), st.Service, st.Digest, givesKey("another key"))
	if !errors.Is(err, pando.ErrForbidden) || !strings.Contains(err.Error(), "another cluster") ||
		!strings.Contains(err.Error(), "pando snapshot") {
		t.Errorf("another key: %v", err)
	}
	_, _, err = s.Open(t.Context(), st.Service, st.Digest,
		func(context.Context) (pando.SnapshotKey, error) { return "", pando.ErrUnavailable })
	if !errors.Is(err, pando.ErrUnavailable) {
		t.Errorf("no key: %v", err)
	}
	root, err := s.Root(st.Digest, "")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(s.LayersDir(), root.Layers[0], sealedFile)
	b, err := os.ReadFile(path)
	if err == nil {
		b[len(b)-1] ^= 1
		err = os.WriteFile(path, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = s.Open(t.Context(), st.Service, st.Digest, givesKey("a key of the cluster"))
	if !errors.Is(err, pando.ErrForbidden) || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("a changed byte: %v", err)
	}
}

func TestASnapshotThatIsNotEncryptedNeedsNoKey(t *testing.T) {
	s := Snapshots{Store: open(t)}
	st := keep(t, s, "memory")
	from, done, err := s.Open(t.Context(), st.Service, st.Digest,
		func(context.Context) (pando.SnapshotKey, error) {
			t.Error("it asks for a key")
			return "", nil
		})
	defer done()
	if err != nil || filepath.IsAbs(from) {
		t.Errorf("%q, %v", from, err)
	}
}

func TestAnEncryptedSnapshotWithoutRoomInMemoryIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounts need root")
	}
	err := sealed{key: "a key", size: "1m"}.fill(t.TempDir(), func(dir string) error {
		return os.WriteFile(filepath.Join(dir, "pages-1.img"), make([]byte, 2<<20), 0o600)
	})
	if !errors.Is(noSpace(err), pando.ErrNoRoom) || errors.Is(noSpace(err), pando.ErrStoreFull) ||
		!strings.Contains(err.Error(), "use --plain") {
		t.Errorf("%v", err)
	}
}
