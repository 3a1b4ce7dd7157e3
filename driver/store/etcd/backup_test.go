package etcd

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"pando.run/pando"
	"pando.run/pando/world"
)

// copied returns a file with a copy of the store.
func copied(t *testing.T, r *Registry) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "copy")
	out, err := os.Create(path)
	if err == nil {
		err = errors.Join(r.Backup(t.Context(), out), out.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// A restored store has the records of the backup, none of a host or leader, the next generation, a
// later revision and another identity.
func TestARestoredStoreIsTheNextGeneration(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, socket := start(t, tempDir(t))
	r := dial(t, socket)
	put := func(v ...pando.Stored) {
		t.Helper()
		if _, err := r.Commit(ctx, pando.Txn{Put: v}); err != nil {
			t.Fatal(err)
		}
	}
	put(pando.Cluster{ID: "c", Generation: 1}, service("web"))
	f, _, err := r.Join(ctx, pando.Host{Name: "h1"}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	path := copied(t, r)
	put(service("later"))
	before, err := r.Snapshot(ctx, pando.Root)
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	dir := filepath.Join(tempDir(t), "store")
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	c, err := Restore(ctx, path, dir, pando.Cluster{Restored: time.Unix(9, 0)}, log)
	if err != nil || c.ID != "c" || c.Generation != 2 {
		t.Fatalf("%+v, %v", c, err)
	}
	if _, err := Restore(ctx, path, dir, pando.Cluster{}, log); err == nil {
		t.Error("a store was restored over another one")
	}
	next, err := Start(ctx, ServerConfig{Dir: dir, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	now, err := next.Registry().Snapshot(ctx, pando.Root)
	if err != nil {
		t.Fatal(err)
	}
	w := world.New()
	if err := w.Apply(now.Records, now.Revision); err != nil {
		t.Fatal(err)
	}
	if len(w.Services) != 1 || len(w.Hosts) != 0 || w.Cluster.V.Generation != 2 ||
		!w.Cluster.V.Restored.Equal(time.Unix(9, 0)) {
		t.Errorf("restored: %d services, %d hosts, %+v", len(w.Services), len(w.Hosts), w.Cluster.V)
	}
	if now.Revision <= before.Revision || now.Store == before.Store {
		t.Errorf("revision %d after %d, store %x after %x", now.Revision, before.Revision, now.Store,
			before.Store)
	}
	_, err = next.Registry().Commit(ctx, pando.Txn{Fence: f, Put: []pando.Stored{service("x")}})
	if !errors.Is(err, pando.ErrFenced) {
		t.Errorf("a fence of the lost store: %v", err)
	}
	b := <-next.Registry().Watch(ctx, pando.Root, before.Revision)
	if !errors.Is(b.Err, pando.ErrCompacted) {
		t.Errorf("a watch of the lost store goes on: %+v", b)
	}
}

func TestADamagedCopyIsNotRestored(t *testing.T) {
	path := filepath.Join(t.TempDir(), "copy")
	if err := os.WriteFile(path, make([]byte, 64<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(tempDir(t), "store")
	_, err := Restore(t.Context(), path, dir, pando.Cluster{},
		slog.New(slog.NewTextHandler(io.Discard, nil)))
	if !errors.Is(err, pando.ErrInvalid) {
		t.Errorf("restored: %v", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a part of a store is left: %v", err)
	}
}
