package etcd

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	etcdlease "go.etcd.io/etcd/server/v3/lease"
	"go.etcd.io/etcd/server/v3/storage/mvcc"

	"pando.run/pando"
)

// reader reads the store for the gate: nearReader in this process, farReader in a foreign etcd.
type reader interface {
	// get reads records from a key to an end, at a revision. A limit or revision of 0 means none. It
	// returns mvcc.ErrCompacted for a revision that is gone.
	get(key, end []byte, limit, revision int64) ([]*mvccpb.KeyValue, error)
	// now returns the newest revision.
	now() (int64, error)
}

// nearReader reads this process's own copy of the store.
type nearReader struct{ kv mvcc.KV }

// get implements reader. The doors of a server that was taken out are open for a moment after its
// store closed, and a read of a closed store panics.
func (n nearReader) get(
	key, end []byte, limit, revision int64,
) (all []*mvccpb.KeyValue, err error) {
	defer func() {
		if why := recover(); why != nil {
			all, err = nil, fmt.Errorf("%w: the store is closing: %v", pando.ErrUnavailable, why)
		}
	}()
	got, err := n.kv.Range(context.Background(), key, end,
		mvcc.RangeOptions{Limit: limit, Rev: revision})
	if err != nil {
		return nil, err
	}
	return got.KVs, nil
}

func (n nearReader) now() (int64, error) { return n.kv.Rev(), nil }

// farReader reads a foreign etcd. Its reads are linearizable: they have every commit that any host
// has seen.
type farReader struct{ client *clientv3.Client }

func (f farReader) get(key, end []byte, limit, revision int64) ([]*mvccpb.KeyValue, error) {
	ctx, cancel := bounded(f.client.Ctx())
	defer cancel()
	of := []clientv3.OpOption{clientv3.WithLimit(limit), clientv3.WithRev(revision)}
	if end != nil {
		of = append(of, clientv3.WithRange(string(end)))
	}
	got, err := f.client.Get(ctx, string(key), of...)
	switch {
	case errors.Is(err, rpctypes.ErrCompacted):
		return nil, mvcc.ErrCompacted
	case err != nil:
		return nil, sentinel(ctx, err)
	}
	return got.Kvs, nil
}

func (f farReader) now() (int64, error) {
	ctx, cancel := bounded(f.client.Ctx())
	defer cancel()
	got, err := f.client.Get(ctx, string(pando.ClusterKey), clientv3.WithCountOnly())
	if err != nil {
		return 0, sentinel(ctx, err)
	}
	return got.Header.Revision, nil
}

// keysOf returns the keys of a lease, or etcdlease.ErrLeaseNotFound.
func (f farReader) keysOf(ctx context.Context, id int64) ([][]byte, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	got, err := f.client.TimeToLive(ctx, clientv3.LeaseID(id), clientv3.WithAttachedKeys())
	switch {
	case err != nil:
		return nil, sentinel(ctx, err)
	case got.TTL < 0:
		return nil, etcdlease.ErrLeaseNotFound
	}
	return got.Keys, nil
}
