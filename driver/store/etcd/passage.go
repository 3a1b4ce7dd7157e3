package etcd

import (
	"context"
	"errors"
	"io"
	"math"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"pando.run/pando"
)

// passage passes the calls of clients to a foreign etcd, unchanged and one to one. It has the calls
// that a registry makes. A client of the doors sees the errors, revisions and streams of that etcd.
type passage struct {
	pb.UnimplementedKVServer
	pb.UnimplementedWatchServer
	pb.UnimplementedLeaseServer
	pb.UnimplementedClusterServer
	kv      pb.KVClient
	watch   pb.WatchClient
	lease   pb.LeaseClient
	cluster pb.ClusterClient
}

func newPassage(to grpc.ClientConnInterface) *passage {
	return &passage{kv: pb.NewKVClient(to), watch: pb.NewWatchClient(to), lease: pb.NewLeaseClient(to),
		cluster: pb.NewClusterClient(to)}
}

func (p *passage) serve(s *grpc.Server) {
	pb.RegisterKVServer(s, p)
	pb.RegisterWatchServer(s, p)
	pb.RegisterLeaseServer(s, p)
	pb.RegisterClusterServer(s, p)
}

// Range implements pb.KVServer.
func (p *passage) Range(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	return p.kv.Range(ctx, r)
}

// DeleteRange implements pb.KVServer.
func (p *passage) DeleteRange(
	ctx context.Context, r *pb.DeleteRangeRequest,
) (*pb.DeleteRangeResponse, error) {
	return p.kv.DeleteRange(ctx, r)
}

// Txn implements pb.KVServer.
func (p *passage) Txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	return p.kv.Txn(ctx, r)
}

// LeaseGrant implements pb.LeaseServer.
func (p *passage) LeaseGrant(
	ctx context.Context, r *pb.LeaseGrantRequest,
) (*pb.LeaseGrantResponse, error) {
	return p.lease.LeaseGrant(ctx, r)
}

// LeaseRevoke implements pb.LeaseServer.
func (p *passage) LeaseRevoke(
	ctx context.Context, r *pb.LeaseRevokeRequest,
) (*pb.LeaseRevokeResponse, error) {
	return p.lease.LeaseRevoke(ctx, r)
}

// LeaseTimeToLive implements pb.LeaseServer.
func (p *passage) LeaseTimeToLive(
	ctx context.Context, r *pb.LeaseTimeToLiveRequest,
) (*pb.LeaseTimeToLiveResponse, error) {
	return p.lease.LeaseTimeToLive(ctx, r)
}

// MemberList implements pb.ClusterServer.
func (p *passage) MemberList(
	ctx context.Context, r *pb.MemberListRequest,
) (*pb.MemberListResponse, error) {
	return p.cluster.MemberList(ctx, r)
}

// Watch implements pb.WatchServer.
func (p *passage) Watch(s pb.Watch_WatchServer) error { return pass(s, p.watch.Watch) }

// LeaseKeepAlive implements pb.LeaseServer.
func (p *passage) LeaseKeepAlive(s pb.Lease_LeaseKeepAliveServer) error {
	return pass(s, p.lease.LeaseKeepAlive)
}

// onward returns the context of the call to the foreign etcd. It keeps the demand for a leader.
func onward(ctx context.Context) context.Context {
	wants := metadata.ValueFromIncomingContext(ctx, rpctypes.MetadataRequireLeaderKey)
	if len(wants) == 0 {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, rpctypes.MetadataRequireLeaderKey, wants[0])
}

// abroad are the options of the connection to a foreign etcd.
func abroad() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(math.MaxInt32)),
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, q, r any,
			c *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			return ownersFull(call(onward(ctx), method, q, r, c, opts...))
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc,
			c *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption,
		) (grpc.ClientStream, error) {
			return open(onward(ctx), d, c, method, opts...)
		}),
	}
}

// ownersFull names the owner of the etcd in the error of a full database, which Pando cannot mend.
func ownersFull(err error) error {
	if !errors.Is(rpctypes.Error(err), rpctypes.ErrNoSpace) {
		return err
	}
	return status.Errorf(codes.ResourceExhausted, "%s: the database of the etcd of --store has "+
		"reached its quota: its owner compacts and defragments it, then runs `etcdctl alarm disarm`; "+
		"traffic is not affected", pando.ErrStoreFull)
}

// pass passes the messages of a stream in both directions until one side ends. A refused message
// ends the stream with the reason of the refusal.
func pass[Q, R any](
	s grpc.BidiStreamingServer[Q, R],
	open func(context.Context, ...grpc.CallOption) (grpc.BidiStreamingClient[Q, R], error),
) error {
	ctx, end := context.WithCancelCause(s.Context())
	defer end(nil)
	to, err := open(ctx)
	if err != nil {
		return err
	}
	go func() { // it ends with the stream
		for {
			q, err := s.Recv()
			switch {
			case errors.Is(err, io.EOF):
				_ = to.CloseSend()
				return
			case err != nil:
				end(err)
				return
			}
			if to.Send(q) != nil {
				return // the answer has the error
			}
		}
	}()
	for {
		r, err := to.Recv()
		if err == nil {
			err = s.Send(r)
		}
		switch cause := context.Cause(ctx); {
		case err == nil:
		case cause != nil && s.Context().Err() == nil:
			return cause
		case errors.Is(err, io.EOF):
			return nil
		default:
			return err
		}
	}
}
