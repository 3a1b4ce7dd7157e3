package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/etcdhttp"

	"pando.run/pando"
)

// Peers configures a store that several servers share. They talk over mutual TLS at one port each.
type Peers struct {
	Listen string // address:port at which the other servers reach this one
	// TLS is the listener's side of a handshake. It must admit servers of the cluster only.
	TLS *tls.Config
	// Certificate has a certificate with its key, and Authority the certificates of the authority.
	// Both are PEM files. Each new connection reads the first one again.
	Certificate, Authority string
	ServerName             string // in the certificates of the other servers
	// Join lists every server of the cluster by name, this one too, with its address:port. It is for
	// the first start of a new server, and nil for a server with a store.
	Join  map[string]string
	Clock pando.Clock // finds the times at which this process stood still
	// Bound limits callers that have not shown a certificate yet. If nil, there is no limit.
	Bound func(net.Listener) net.Listener
}

// Several servers miss heartbeats on busy machines, so their election waits longer.
const (
	peersTickMilliseconds     = 100
	peersElectionMilliseconds = 1500
	peersWaitLog              = 10 * time.Second // between two warnings of a start without a quorum
	promoteEvery              = 500 * time.Millisecond
)

// ErrRemoved means that the other servers do not count this one as one of them any more.
var ErrRemoved = errors.New("this server was removed from the cluster's servers")

func peerURL(address string) string { return "https://" + address }

// shared changes etcd's configuration of a single server to that of one of several.
func (p *Peers) shared(conf *embed.Config) {
	if p == nil {
		return
	}
	own := []url.URL{{Scheme: "https", Host: p.Listen}}
	conf.AdvertisePeerUrls = own
	conf.InitialCluster = conf.InitialClusterFromName(conf.Name)
	conf.PeerTLSInfo = transport.TLSInfo{
		CertFile: p.Certificate, KeyFile: p.Certificate, TrustedCAFile: p.Authority,
		ServerName: p.ServerName, MinVersion: tls.VersionTLS13,
	}
	conf.TickMs, conf.ElectionMs = peersTickMilliseconds, peersElectionMilliseconds
	if p.Join == nil {
		return
	}
	var all []string
	for _, name := range slices.Sorted(maps.Keys(p.Join)) {
		all = append(all, name+"="+peerURL(p.Join[name]))
	}
	conf.InitialCluster = strings.Join(all, ",")
	conf.ClusterState = embed.ClusterStateFlagExisting
}

// peerDoor serves the other servers.
type peerDoor struct {
	net.Listener
	stale  *stale
	server *http.Server
}

// openPeers listens for the other servers. No server is answered before serve.
func (p *Peers) openPeers() (*peerDoor, error) {
	if p == nil {
		return nil, nil
	}
	if p.TLS == nil || p.TLS.ClientAuth != tls.RequireAndVerifyClientCert {
		return nil, fmt.Errorf("%w: the door for servers verifies no certificate", pando.ErrInvalid)
	}
	l, err := net.Listen("tcp", p.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen for other servers: %w", err)
	}
	if p.Bound != nil {
		l = p.Bound(l)
	}
	return &peerDoor{Listener: tls.NewListener(l, p.TLS), stale: newStale(p.Clock)}, nil
}

// serve answers the other servers in the background, until shut.
func (d *peerDoor) serve(s *etcdserver.EtcdServer, run func(func()), end func(error)) {
	d.server = &http.Server{
		Handler:           d.stale.handler(etcdhttp.NewPeerHandler(s.Logger(), s)),
		ReadTimeout:       5 * time.Minute,            // as etcd
		ReadHeaderTimeout: 10 * time.Second,           // of strangers, also for their handshake
		ErrorLog:          log.New(io.Discard, "", 0), // strangers must not fill the log
	}
	run(func() {
		if err := d.server.Serve(d.Listener); !errors.Is(err, http.ErrServerClosed) {
			end(err)
		}
	})
}

// shut ends every connection of other servers.
func (d *peerDoor) shut() {
	if d == nil {
		return
	}
	if d.server != nil {
		d.server.Close()
	}
	d.Listener.Close()
}

// await waits until the store of several servers has a quorum. It warns now and then, because a
// server that starts alone waits for another one.
func (s *Server) await(ctx context.Context, log *slog.Logger) error {
	t := time.NewTicker(peersWaitLog)
	defer t.Stop()
	for {
		select {
		case <-s.etcd.Server.ReadyNotify():
			return nil
		case <-s.etcd.Server.StopNotify():
			return ErrRemoved
		case err := <-s.etcd.Err():
			return err
		case <-ctx.Done():
			return fmt.Errorf("it is not ready: %w", ctx.Err())
		case <-t.C:
			log.Warn("the store waits for other servers: without a majority of them nothing is decided",
				"next", "`pando up` on the hosts of the other servers")
		}
	}
}

// announce makes the peer address of this server known, if that has changed. The first server of a
// cluster has none before the second one joins.
func (s *Server) announce(ctx context.Context, p *Peers) error {
	own := s.etcd.Server.Cluster().Member(s.etcd.Server.MemberID())
	want := []string{peerURL(p.Listen)}
	if own == nil || slices.Equal(own.PeerURLs, want) {
		return nil
	}
	_, err := s.registry.client.MemberUpdate(ctx, uint64(own.ID), want)
	if err != nil {
		return fmt.Errorf("announce the address of this server: %w", sentinel(ctx, err))
	}
	return nil
}

// leads reports whether this server leads the others.
func (s *Server) leads() bool { return s.etcd.Server.Leader() == s.etcd.Server.MemberID() }

// askLeader waits until the leading server answers. The leader itself needs no answer.
func (s *Server) askLeader(ctx context.Context) error {
	if s.leads() {
		return nil
	}
	return s.etcd.Server.LinearizableReadNotify(ctx)
}

// promote makes new servers voters once they have caught up, until ctx ends. The leader does it.
func (s *Server) promote(ctx context.Context, log *slog.Logger) {
	t := time.NewTicker(promoteEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if !s.leads() {
			continue
		}
		for _, m := range s.etcd.Server.Cluster().Members() {
			if !m.IsLearner || m.Name == "" {
				continue
			}
			call, cancel := bounded(ctx)
			_, err := s.registry.client.MemberPromote(call, uint64(m.ID)) // not ready: it is tried again
			cancel()
			if err == nil {
				log.Info("a new server votes", "server", m.Name)
			}
		}
	}
}

// untilRemoved reports when the other servers have removed this one, until ctx ends.
func (s *Server) untilRemoved(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-s.etcd.Server.StopNotify():
		if ctx.Err() == nil {
			s.end(ErrRemoved)
		}
	}
}
