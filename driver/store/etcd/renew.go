package etcd

import (
	"context"
	"errors"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

const (
	renewTries    = 4                      // calls in the duration of a lease
	renewAgain    = 100 * time.Millisecond // after a failed call
	renewAnswered = time.Second            // the least time for an answer
)

// renewal renews a lease until ctx ends. It closes the channel when the lease is lost: the store
// has none, or no call was answered for the duration of the lease. etcd's own keep-alive waits on
// one stream for all that time, also for a server that hangs.
func renewal(
	ctx context.Context, ttl time.Duration, renew func(context.Context) error,
) <-chan struct{} {
	lost := make(chan struct{})
	go func() {
		defer close(lost)
		wait, ends := time.NewTimer(ttl/renewTries), time.NewTimer(ttl)
		defer wait.Stop()
		defer func() { ends.Stop() }()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ends.C:
				return
			case <-wait.C:
			}
			next := time.NewTimer(ttl) // the store counts from its answer, which is later
			call, cancel := context.WithTimeout(ctx, max(renewAnswered, ttl/renewTries))
			err := renew(call)
			cancel()
			switch {
			case err == nil:
				ends.Stop()
				ends = next
				wait.Reset(ttl / renewTries)
			case errors.Is(err, rpctypes.ErrLeaseNotFound):
				next.Stop()
				return
			default:
				next.Stop()
				wait.Reset(renewAgain)
			}
		}
	}()
	return lost
}

// renews returns the call that renews a lease by whichever server the registry uses.
func (r *Registry) renews(id clientv3.LeaseID) func(context.Context) error {
	if r.client.ActiveConnection() == nil { // in the server's process
		return func(ctx context.Context) error {
			_, err := r.client.KeepAliveOnce(ctx, id)
			return err
		}
	}
	// KeepAliveOnce would spin while no server is reached.
	far := pb.NewLeaseClient(r.client.ActiveConnection())
	return func(ctx context.Context) error {
		s, err := far.LeaseKeepAlive(ctx, grpc.WaitForReady(true))
		if err == nil {
			err = s.Send(&pb.LeaseKeepAliveRequest{ID: int64(id)})
		}
		if err != nil {
			return err
		}
		defer func() { _ = s.CloseSend() }()
		left, err := s.Recv()
		if err == nil && left.TTL <= 0 {
			err = rpctypes.ErrLeaseNotFound
		}
		return err
	}
}
