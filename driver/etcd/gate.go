package etcd

import (
	"bytes"
	"context"
	"crypto/x509"
	"fmt"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"pando.run/pando"
)

// Members is how the agents of other hosts reach an embedded store: over TLS, with a certificate of the cluster.
type Members struct {
	Listen string // address:port
	// The server's certificate, its key and the authority of the members, as files.
	Certificate, Key, Authority string
	// HostOf says whose a verified certificate is.
	HostOf func(*x509.Certificate) (pando.HostName, error)
}

func (m *Members) tls() transport.TLSInfo {
	return transport.TLSInfo{CertFile: m.Certificate, KeyFile: m.Key, TrustedCAFile: m.Authority, ClientCertAuth: true}
}

// gate is the door for members. What comes over the unix socket is root's on this host and may do everything; a member may
// read, and write what is its own:
//
//	host, leader/host-NAME, instance   of its own host only
//	intent, decision, head             of any service: its instances ask, its agent decides and merges
//	service, revision, member, leader  never
//
// Every write is under the member's own fence, so an agent that was taken over cannot write in its successor's name.
type gate struct{ members *Members }

// who is the member that asks; remote is false for root on this host.
func (g gate) who(ctx context.Context) (h pando.HostName, remote bool, err error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return "", true, status.Error(codes.PermissionDenied, "nobody knows who asks")
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok {
		return "", false, nil // the unix socket: TLS listens nowhere without a certificate
	}
	if len(info.State.VerifiedChains) == 0 {
		return "", true, status.Error(codes.PermissionDenied, "no certificate")
	}
	if h, err = g.members.HostOf(info.State.VerifiedChains[0][0]); err != nil {
		return "", true, status.Error(codes.PermissionDenied, err.Error())
	}
	return h, true, nil
}

func (g gate) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	h, remote, err := g.who(ctx)
	if err == nil && remote {
		err = allowed(h, req)
	}
	if err != nil {
		return nil, err
	}
	return handle(ctx, req)
}

// streams that a member may open: it sees the whole store, and keeps its lease alive.
var streams = map[string]bool{"/etcdserverpb.Watch/Watch": true, "/etcdserverpb.Lease/LeaseKeepAlive": true}

func (g gate) stream(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	h, remote, err := g.who(s.Context())
	if err == nil && remote && !streams[info.FullMethod] {
		err = refused(h, info.FullMethod)
	}
	if err != nil {
		return err
	}
	return handle(srv, s)
}

func refused(h pando.HostName, what string) error {
	return status.Errorf(codes.PermissionDenied, "%s: host %s may not: %s", pando.ErrForbidden, h, what)
}

func allowed(h pando.HostName, req any) error {
	epoch := pando.LeaderKey("host-" + string(h))
	switch r := req.(type) {
	case *pb.RangeRequest, *pb.LeaseGrantRequest:
		return nil
	case *pb.DeleteRangeRequest: // of its own former agent's epoch
		if pando.Key(r.Key) == epoch && len(r.RangeEnd) == 0 {
			return nil
		}
		return refused(h, "delete "+string(r.Key))
	case *pb.TxnRequest:
		if !fenced(r, epoch) {
			return refused(h, "write without its fence")
		}
		for _, op := range r.Failure {
			if op.GetRequestRange() == nil {
				return refused(h, "write when a condition does not hold")
			}
		}
		for _, op := range r.Success {
			if err := mayWrite(h, op); err != nil {
				return err
			}
		}
		return nil
	}
	return refused(h, fmt.Sprintf("%T", req))
}

// fenced says whether a transaction holds only in one life of the member's agent.
func fenced(r *pb.TxnRequest, epoch pando.Key) bool {
	for _, c := range r.Compare {
		if pando.Key(c.Key) == epoch && len(c.RangeEnd) == 0 && c.Target == pb.Compare_CREATE && c.Result == pb.Compare_EQUAL {
			return true
		}
	}
	return false
}

func mayWrite(h pando.HostName, op *pb.RequestOp) error {
	var k, end []byte
	switch {
	case op.GetRequestPut() != nil:
		k = op.GetRequestPut().Key
	case op.GetRequestDeleteRange() != nil:
		k, end = op.GetRequestDeleteRange().Key, op.GetRequestDeleteRange().RangeEnd
	case op.GetRequestRange() != nil:
		return nil
	}
	if len(end) == 0 && owns(h, pando.Key(bytes.Clone(k))) {
		return nil
	}
	return refused(h, "write "+string(k))
}

func owns(h pando.HostName, k pando.Key) bool {
	switch k.Kind() {
	case pando.KindHost:
		return k == pando.HostKey(h)
	case pando.KindLeader:
		return k == pando.LeaderKey("host-"+string(h))
	case pando.KindInstance:
		parts := strings.Split(string(k), "/") // "", pando, instance, tenant, service, host, id
		return len(parts) == 7 && parts[5] == string(h)
	case pando.KindIntent, pando.KindDecision, pando.KindHead:
		return true
	}
	return false
}
