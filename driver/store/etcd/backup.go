package etcd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"

	"pando.run/pando"
	"pando.run/pando/world"
)

// Backup writes a consistent copy of the whole store to w.
func (r *Registry) Backup(ctx context.Context, w io.Writer) error {
	from, err := r.client.Snapshot(ctx)
	if err == nil {
		_, err = io.Copy(w, from)
		_ = from.Close()
	}
	if err != nil {
		return fmt.Errorf("copy the store: %w", sentinel(ctx, err))
	}
	return nil
}

// revisionJump is added to the revision of a restored store. A watch of the lost store then begins
// anew, instead of waiting until the restored store has grown to its revision.
const revisionJump = 1_000_000_000

// Restore makes a store in dir, which must not exist, from a copy that Backup wrote. No host and no
// leader stands in the new store, and it has the cluster's next generation. It returns the store's
// record of itself.
func Restore(
	ctx context.Context, copied, dir string, own pando.Cluster, log *slog.Logger,
) (c pando.Cluster, err error) {
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		return c, fmt.Errorf("restore the store: %w: something is in %s", pando.ErrExists, dir)
	}
	e := embedded(ServerConfig{Dir: dir}.withDefaults())
	err = snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: copied, Name: e.Name, OutputDataDir: dir,
		PeerURLs: []string{e.AdvertisePeerUrls[0].String()}, InitialCluster: e.InitialCluster,
		InitialClusterToken: rand.Text(), RevisionBump: revisionJump, MarkCompacted: true,
	})
	if err != nil {
		_ = os.RemoveAll(dir)
		return c, fmt.Errorf("restore the store: %w: %w", pando.ErrInvalid, err)
	}
	s, err := Start(ctx, ServerConfig{Dir: dir, Log: log})
	if err != nil {
		return c, err
	}
	defer s.Close()
	if c, err = begin(ctx, s.Registry(), own); err != nil {
		return c, fmt.Errorf("begin generation %d of the store: %w", own.Generation, err)
	}
	return c, os.RemoveAll(filepath.Join(dir, "ballast")) // the next start lays it again
}

// clearBatch is the number of keys that one transaction deletes.
const clearBatch = 400

// begin begins the next generation in a restored store.
func begin(ctx context.Context, r *Registry, own pando.Cluster) (pando.Cluster, error) {
	now, err := r.Snapshot(ctx, pando.ClusterKey)
	if err != nil {
		return own, err
	}
	for _, rec := range now.Records {
		var was pando.Cluster
		if err := world.Decode(rec, &was); err != nil {
			return own, err
		}
		own.ID, own.Born, own.Layout = was.ID, was.Born, was.Layout
		own.Generation = max(own.Generation, was.Generation+1)
	}
	var gone []pando.Key
	for _, kind := range []pando.Kind{pando.KindHost, pando.KindLeader} {
		all, err := r.Snapshot(ctx, pando.Root+pando.Key(kind)+"/")
		if err != nil {
			return own, err
		}
		for _, rec := range all.Records {
			gone = append(gone, rec.Key)
		}
	}
	for len(gone) > 0 {
		n := min(len(gone), clearBatch)
		if _, err := r.Commit(ctx, pando.Txn{Delete: gone[:n]}); err != nil {
			return own, err
		}
		gone = gone[n:]
	}
	_, err = r.Commit(ctx, pando.Txn{Put: []pando.Stored{own}})
	return own, err
}
