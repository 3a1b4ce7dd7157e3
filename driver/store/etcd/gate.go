package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"pando.run/pando"
	"pando.run/pando/world"
)

// Members configures access for the agents of other hosts: over TLS, with a certificate of the
// cluster.
type Members struct {
	Listen string // address:port
	// TLS is the server's side of a handshake. It must demand and verify a certificate of the
	// members' authority, and speak h2. It lives as long as the store, so it must renew itself.
	TLS *tls.Config
	// HostOf returns the host of a verified certificate.
	HostOf func(*x509.Certificate) (pando.HostName, error)
	// Bound limits callers that have not shown a certificate yet. If nil, there is no limit.
	Bound func(net.Listener) net.Listener
	// Clock times the retries of the watch that ends the calls of removed members.
	Clock pando.Clock
}

// gate checks the calls of members. A caller at the unix socket is root on this host and may do
// everything. A member is a host with a certificate and a member record for the certificate's key.
// A member that runs a server reads everything, because it has a copy of the store. Another member
// reads the part of the store that its agent follows (scope.go):
//
//	endpoints, service, head, host, member, cluster, leader  of the whole cluster.
//	instance                                                 of its own.
//	revision, intent                                         of the services on it.
//
// A member may write its own records:
//
//	host, leader/host-NAME  its own, as its member record has it.
//	instance                an instance that control placed on it.
//	intent                  an ask by one of its instances, or a later step about one, and never
//	                        control's answer.
//	decision                about one of its instances, of a kind that agents write.
//	head                    of a state that it keeps.
//
// It never writes a service, revision, member or other leader record.
//
// The gate checks the value of a record together with its key (rights.go). Every transaction needs
// the fence of the member's agent, so that a replaced agent cannot write in its successor's name.
type gate struct {
	members *Members
	store   *store
	leases  *leases
	open    *streams
	copies  *copies
	log     *slog.Logger

	refusals *refusals
	lapsed   *lapsed
	// newest waits until this server has every earlier commit. One of several may be behind: a host
	// that comes from another server has seen more. Nil: a single server is never behind.
	newest func(context.Context) error
}

// surely repeats a check that refuses, once this server has every commit.
func (g gate) surely(ctx context.Context, check func() error) error {
	err := check()
	if err == nil || g.newest == nil || g.newest(ctx) != nil {
		return err
	}
	return check()
}

// who returns the calling member; remote is false for root on this host.
func (g gate) who(ctx context.Context) (m pando.Member, remote bool, err error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return m, true, status.Error(codes.PermissionDenied, "the connection has no peer")
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok {
		return m, false, nil // the unix socket: every TCP door has TLS
	}
	if len(info.State.VerifiedChains) == 0 {
		return m, true, status.Error(codes.PermissionDenied, "no certificate")
	}
	err = g.surely(ctx, func() (err error) {
		if m, err = g.member(info.State.VerifiedChains[0][0]); err == nil {
			err = g.comesFrom(m, p.Addr)
		}
		return err
	})
	if err != nil {
		return m, true, status.Error(codes.PermissionDenied, err.Error())
	}
	return m, true, nil
}

// comesFrom refuses a copy of a member: its certificate on another machine.
func (g gate) comesFrom(m pando.Member, at net.Addr) error {
	from, err := netip.ParseAddrPort(at.String())
	if err != nil {
		return nil // not the network
	}
	err = m.ComesFrom(from.Addr().Unmap())
	if err != nil && g.copies.isNew(m.Name, from.Addr()) {
		g.log.Warn("a member's certificate is used from another address", "host", m.Name, "error", err)
	}
	return err
}

// copies remember the last foreign address of each member, so that one warning names it.
type copies struct {
	mu sync.Mutex
	of map[pando.HostName]netip.Addr // at most one for each member
}

func (c *copies) isNew(h pando.HostName, from netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[pando.HostName]netip.Addr{}
	}
	was := c.of[h]
	c.of[h] = from
	return was != from
}

// member returns the member record of a verified certificate, if the record admits its key.
func (g gate) member(c *x509.Certificate) (m pando.Member, err error) {
	h, err := g.members.HostOf(c)
	if err != nil {
		return m, err
	}
	if found, err := g.store.read(pando.MemberKey(h), &m); err != nil {
		return m, err
	} else if found == 0 {
		return m, pando.NotMember(h)
	}
	return m, m.Admits(c.RawSubjectPublicKeyInfo)
}

// follow ends the open calls of removed members, until ctx ends.
func (g gate) follow(ctx context.Context, clock pando.Clock, r *Registry, log *slog.Logger) {
	members := pando.Root + pando.Key(pando.KindMember)
	err := world.Follow(ctx, clock, r, members, func(pando.Batch, bool) {
		g.open.sever(func(h pando.HostName) (m pando.Member, ok bool) {
			at, err := g.store.read(pando.MemberKey(h), &m)
			return m, err == nil && at != 0
		})
	})
	if ctx.Err() == nil {
		log.Error("open calls of members that leave are not ended any more", "error", err)
	}
}

func (g gate) unary(
	ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler,
) (any, error) {
	m, remote, err := g.who(ctx)
	if err == nil && remote {
		err = g.surely(ctx, func() error { return g.allowed(ctx, m, req) })
	}
	if err != nil {
		return nil, err
	}
	resp, err := handle(ctx, req)
	if err == nil && remote && !m.Server {
		err = g.answer(m, req, resp)
	}
	if granted, ok := resp.(*pb.LeaseGrantResponse); ok && err == nil && remote {
		g.leases.note(m.Name, granted.ID)
	}
	return resp, err
}

// answer checks the answer to a read of a member.
func (g gate) answer(m pando.Member, req, resp any) error {
	r, ok := req.(*pb.RangeRequest)
	if !ok {
		return nil
	}
	s, _ := scopeAt(m.Name, pando.Key(r.Key)) // allowed has checked the range
	return g.withhold(m, s, r, resp.(*pb.RangeResponse))
}

// methods are the streams that a member may open: it may watch its part of the store and keep its
// lease alive.
var methods = map[string]bool{"/etcdserverpb.Watch/Watch": true,
	"/etcdserverpb.Lease/LeaseKeepAlive": true}

func (g gate) stream(
	srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler,
) error {
	m, remote, err := g.who(s.Context())
	if err == nil && remote && !methods[info.FullMethod] {
		err = g.refuse(m.Name, info.FullMethod)
	}
	if err != nil {
		return err
	}
	if !remote {
		return handle(srv, s)
	}
	ctx, end, err := g.open.begin(s.Context(), m)
	if err != nil {
		return err
	}
	defer end(nil)
	w := &guarded{ServerStream: s, ctx: ctx, of: m, gate: g, end: end, watches: map[int64]*watching{}}
	defer w.forget()
	err = handle(srv, w)
	if errors.Is(context.Cause(ctx), errRegained) {
		return rpctypes.ErrGRPCCompacted
	}
	return err
}

// refuse returns the error of a refused call, and counts it.
func (g gate) refuse(h pando.HostName, what string) error {
	g.refusals.refused(h, what)
	return refused(h, what)
}

func refused(h pando.HostName, what string) error {
	return status.Errorf(codes.PermissionDenied, "%s: host %s may not: %s", pando.ErrForbidden, h,
		what)
}

func (g gate) allowed(ctx context.Context, m pando.Member, req any) error {
	epoch := pando.LeaderKey("host-" + string(m.Name))
	switch r := req.(type) {
	case *pb.RangeRequest:
		if m.Server {
			return nil
		}
		if _, err := scopeOf(m.Name, r.Key, r.RangeEnd); err != nil {
			return g.refuse(m.Name, err.Error())
		}
		return nil
	case *pb.LeaseGrantRequest:
		return g.leases.mayGrant(ctx, m.Name, r)
	case *pb.LeaseRevokeRequest:
		return g.leases.mayRevoke(m.Name, r.ID)
	case *pb.DeleteRangeRequest: // only the epoch of its own former agent
		if pando.Key(r.Key) == epoch && len(r.RangeEnd) == 0 {
			return nil
		}
		return g.refuse(m.Name, "delete "+string(r.Key))
	case *pb.TxnRequest:
		if !fenced(r, epoch) {
			return g.refuse(m.Name, "write without its fence")
		}
		for _, op := range r.Failure {
			if op.GetRequestRange() == nil {
				return g.refuse(m.Name, "write when a condition does not hold")
			}
		}
		if err := mayRead(m, r); err != nil && !m.Server {
			return g.refuse(m.Name, err.Error())
		}
		return g.rights(ctx, m).check(r)
	}
	return g.refuse(m.Name, fmt.Sprintf("%T", req))
}

// fenced reports whether a transaction is bound to one life of the member's agent.
func fenced(r *pb.TxnRequest, epoch pando.Key) bool {
	for _, c := range r.Compare {
		if pando.Key(c.Key) == epoch && len(c.RangeEnd) == 0 && c.Target == pb.Compare_CREATE &&
			c.Result == pb.Compare_EQUAL {
			return true
		}
	}
	return false
}
