package etcd

import (
	"context"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"pando.run/pando"
	"pando.run/pando/world"
)

// Commit writes t as one etcd transaction, which is durable when Commit returns.
func (r *Registry) Commit(ctx context.Context, t pando.Txn) (pando.StoreRevision, error) {
	puts, err := r.puts(t)
	if err != nil {
		return 0, err
	}
	for _, k := range t.Delete {
		puts = append(puts, clientv3.OpDelete(string(k)))
	}
	if len(puts) == 0 {
		return 0, fmt.Errorf("%w: a transaction that writes nothing", pando.ErrInvalid)
	}
	written := make([]pando.Key, len(t.Put))
	for n, v := range t.Put {
		written[n] = v.Key()
	}
	if err := r.guard.check(); err != nil && !removes(len(t.Delete), written) {
		return 0, err
	}
	if err := r.guard.mayAdd(txnAdds(t)); err != nil {
		return 0, err
	}
	checks, reads := conditions(t)
	ctx, cancel := bounded(ctx)
	defer cancel()
	r.guard.awaitLeader(ctx)
	resp, err := r.client.Txn(ctx).If(checks...).Then(puts...).Else(reads...).Commit()
	if err != nil {
		return 0, fmt.Errorf("commit %s: %w", about(t), sentinel(ctx, err))
	}
	if !resp.Succeeded {
		now := make(map[pando.Key]*mvccpb.KeyValue, len(reads))
		for _, one := range resp.Responses {
			for _, kv := range one.GetResponseRange().Kvs {
				now[pando.Key(kv.Key)] = kv
			}
		}
		return 0, fmt.Errorf("commit %s: %w", about(t), failed(t, now))
	}
	return pando.StoreRevision(resp.Header.Revision), nil
}

// txnAdds reports whether a transaction adds a record for good.
func txnAdds(t pando.Txn) bool {
	for _, v := range t.Put {
		if adds(v.Key(), func() bool {
			i, ok := v.(pando.Intent)
			return ok && i.State == pando.IntentAsked
		}) {
			return true
		}
	}
	return false
}

// puts encodes the values of a transaction as operations. A host's record stays under its agent's
// lease.
func (r *Registry) puts(t pando.Txn) ([]clientv3.Op, error) {
	ops := make([]clientv3.Op, 0, len(t.Put)+len(t.Delete))
	for _, v := range t.Put {
		b, err := world.Encode(v)
		if err != nil {
			return nil, fmt.Errorf("commit %s: %w", v.Key(), err)
		}
		var opts []clientv3.OpOption
		if v.Key().Kind() == pando.KindHost {
			lease, ok := r.leaseOf(t.Fence)
			if !ok {
				return nil, fmt.Errorf("%w: %s is written by its own agent alone, under the fence of its Join",
					pando.ErrInvalid, v.Key())
			}
			opts = append(opts, clientv3.WithLease(lease))
		}
		ops = append(ops, clientv3.OpPut(string(v.Key()), string(b), opts...))
	}
	return ops, nil
}

// conditions returns the checks of a transaction, and the reads that show which check failed.
func conditions(t pando.Txn) (checks []clientv3.Cmp, reads []clientv3.Op) {
	if t.Fence != (pando.Fence{}) {
		k := string(t.Fence.Key)
		checks = append(checks, clientv3.Compare(clientv3.CreateRevision(k), "=", int64(t.Fence.Created)))
		reads = append(reads, clientv3.OpGet(k, clientv3.WithKeysOnly()))
	}
	for _, c := range t.If {
		checks = append(checks,
			clientv3.Compare(clientv3.ModRevision(string(c.Key)), "=", int64(c.Modified)))
		reads = append(reads, clientv3.OpGet(string(c.Key), clientv3.WithKeysOnly()))
	}
	return checks, reads
}

// failed returns an error for the first condition of a refused transaction that did not hold. now
// has the records at the time of the refusal.
func failed(t pando.Txn, now map[pando.Key]*mvccpb.KeyValue) error {
	if t.Fence != (pando.Fence{}) {
		if created := now[t.Fence.Key].GetCreateRevision(); created != int64(t.Fence.Created) {
			if created == 0 {
				return fmt.Errorf("%w: %s of revision %d is gone",
					pando.ErrFenced, t.Fence.Key, t.Fence.Created)
			}
			return fmt.Errorf("%w: %s of revision %d was taken over at revision %d",
				pando.ErrFenced, t.Fence.Key, t.Fence.Created, created)
		}
	}
	for _, c := range t.If {
		modified := now[c.Key].GetModRevision()
		switch {
		case modified == int64(c.Modified):
		case c.Modified == 0:
			return fmt.Errorf("%w: %s exists already, written at revision %d",
				pando.ErrConflict, c.Key, modified)
		case modified == 0:
			return fmt.Errorf("%w: %s was deleted after revision %d", pando.ErrConflict, c.Key, c.Modified)
		default:
			return fmt.Errorf("%w: %s was changed at revision %d, after revision %d",
				pando.ErrConflict, c.Key, modified, c.Modified)
		}
	}
	return pando.ErrConflict
}

// about names a transaction in an error: its first key and the number of other keys.
func about(t pando.Txn) string {
	keys := make([]pando.Key, 0, len(t.Put)+len(t.Delete))
	for _, v := range t.Put {
		keys = append(keys, v.Key())
	}
	keys = append(keys, t.Delete...)
	if len(keys) == 1 {
		return string(keys[0])
	}
	return fmt.Sprintf("%s and %d more", keys[0], len(keys)-1)
}

func record(kv *mvccpb.KeyValue) pando.Record {
	return pando.Record{
		Key:      pando.Key(kv.Key),
		Value:    kv.Value,
		Created:  pando.StoreRevision(kv.CreateRevision),
		Modified: pando.StoreRevision(kv.ModRevision),
	}
}
