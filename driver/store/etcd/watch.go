package etcd

import (
	"context"
	"fmt"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	"pando.run/pando"
)

// Watch streams every change under prefix after a store revision: one batch per commit, in order.
// An empty batch means no change up to its revision. The watch outlives a restart of the server.
func (r *Registry) Watch(
	ctx context.Context, prefix pando.Key, after pando.StoreRevision,
) <-chan pando.Batch {
	out := make(chan pando.Batch)
	go func() {
		defer close(out)
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		send := func(b pando.Batch) bool {
			select {
			case out <- b:
				return true
			case <-ctx.Done():
				return false
			}
		}
		ctx = r.streamed(clientv3.WithRequireLeader(ctx))
		in := r.client.Watch(ctx, string(prefix),
			clientv3.WithPrefix(), clientv3.WithRev(int64(after)+1), clientv3.WithProgressNotify())
		for {
			resp, ok := r.receive(ctx, in)
			if !ok {
				break
			}
			if err := resp.Err(); err != nil {
				send(pando.Batch{Revision: after, Err: fmt.Errorf("watch %s* after revision %d: %w",
					prefix, after, sentinel(ctx, err))})
				return
			}
			for _, b := range batches(resp) {
				after, b.Store = b.Revision, pando.StoreID(resp.Header.ClusterId)
				if !send(b) {
					return
				}
			}
		}
		if ctx.Err() == nil {
			send(pando.Batch{Revision: after, Err: fmt.Errorf("watch %s* after revision %d: %w",
				prefix, after, pando.ErrUnavailable)})
		}
	}()
	return out
}

// streamed returns a context whose watch has a stream of its own, in the process of a server. The
// client keeps one stream for each set of headers.
func (r *Registry) streamed(ctx context.Context) context.Context {
	if !r.apart {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, "pando-watch",
		strconv.FormatUint(r.opens.Add(1), 10))
}

// progressEvery is the time between two questions for the progress of a watch. An etcd that runs
// without Pando reports it by itself only every ten minutes.
const progressEvery = 5 * time.Second

// receive returns the next response of a watch. It asks a foreign etcd for the progress of a silent
// watch. The answer is a response without changes, unless the watch is behind.
func (r *Registry) receive(ctx context.Context, in clientv3.WatchChan) (clientv3.WatchResponse, bool) {
	if r.guard != nil || !r.apart {
		resp, ok := <-in // an embedded etcd reports progress by itself (ServerConfig)
		return resp, ok
	}
	t := time.NewTicker(progressEvery)
	defer t.Stop()
	for {
		select {
		case resp, ok := <-in:
			return resp, ok
		case <-t.C:
			_ = r.client.RequestProgress(ctx) // a watch that is broken reports that itself
		}
	}
}

// batches splits a response into one batch per commit. A response has several commits if the
// watcher was behind.
func batches(resp clientv3.WatchResponse) []pando.Batch {
	if resp.IsProgressNotify() {
		return []pando.Batch{{Revision: pando.StoreRevision(resp.Header.Revision)}}
	}
	var out []pando.Batch
	for _, e := range resp.Events {
		rec := record(e.Kv)
		if e.Type == clientv3.EventTypeDelete {
			rec.Value = nil
		}
		if n := len(out); n == 0 || out[n-1].Revision != rec.Modified {
			out = append(out, pando.Batch{Revision: rec.Modified})
		}
		last := &out[len(out)-1]
		last.Changes = append(last.Changes, rec)
	}
	return out
}
