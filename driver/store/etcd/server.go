package etcd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"pando.run/pando"
)

// ServerConfig configures an embedded store: a single server, or one of several.
type ServerConfig struct {
	Dir          string       // of the data; created if missing
	ClientSocket string       // unix path for agents, mode 0600; "": this process only
	Members      *Members     // access for other hosts; nil: no access
	Peers        *Peers       // the other servers; nil: a single server
	Name         string       // of the etcd member; default "pando"
	QuotaBytes   int64        // limit of the database file; default 512 MiB
	Foreign      *Foreign     // an etcd that runs already; then only the doors and Log count
	Log          *slog.Logger // errors and changes of the disk; default slog.Default()
}

// A single server can miss no heartbeat, so the election may be short, and a start waits only for
// the election. The election timeout must be at least five ticks, and each tick wakes an idle
// machine.
const (
	tickMilliseconds     = 50
	electionMilliseconds = 250
	startWaitMax         = 30 * time.Second
	snapshotEntries      = 5000 // raft entries per snapshot; they stay in memory
	catchUpEntries       = 500
	batchOperationsMax   = 1024
	socketPathMax        = 107
)

// Server is an embedded etcd, or the doors to a foreign one.
type Server struct {
	etcd     *embed.Etcd // nil: the store is foreign
	foreign  *foreign    // nil: the store is embedded
	registry *Registry
	lock     *os.File
	stop     context.CancelFunc // of the guard and of the gate
	guarding sync.WaitGroup
	doors    []*door
	peers    *peerDoor // nil: a single server
	asks     asks
	refusals *refusals
	serving  sync.WaitGroup // the doors, and the watch for etcd's own end
	ended    chan error     // the first error, for Err
	closed   sync.Once
}

var shrinkSegments = sync.OnceFunc(func() { wal.SegmentSizeBytes = segmentBytes })

// Start runs an etcd in this process and returns once it accepts writes. ctx bounds only the start;
// end the server with Close.
//
// A failing disk still ends the process, because etcd exits on a failed write. Code that must
// survive the store belongs into another process. A full disk does not end it: the store refuses
// writes with pando.ErrStoreFull before that.
func Start(ctx context.Context, c ServerConfig) (*Server, error) {
	c = c.withDefaults()
	if c.Foreign != nil {
		return startForeign(ctx, c)
	}
	lock, err := lockDir(c.Dir)
	if err != nil {
		return nil, err
	}
	s := &Server{lock: lock, ended: make(chan error, 1)}
	g := &guard{dir: c.Dir, log: c.Log}
	if err := s.start(ctx, c, g); err != nil {
		s.Close()
		return nil, fmt.Errorf("start the store in %s: %w", c.Dir, err)
	}
	return s, nil
}

func (s *Server) start(ctx context.Context, c ServerConfig, g *guard) (err error) {
	if g.check() != nil {
		g.dropBallast() // etcd allocates the freed space while it starts
	}
	if s.doors, err = c.doors(); err != nil {
		return err
	}
	if s.peers, err = c.Peers.openPeers(); err != nil {
		return err
	}
	shrinkSegments()
	if s.etcd, err = embed.StartEtcd(embedded(c)); err != nil {
		return err
	}
	if s.peers != nil { // a new server catches up by it before it is ready
		s.peers.serve(s.etcd.Server, s.serving.Go, s.end)
	}
	if err := s.ready(ctx, c); err != nil {
		return err
	}
	client := v3client.New(s.etcd.Server)
	g.crowded = s.crowdedOf(c.QuotaBytes)
	s.registry = newRegistry(client, g)
	s.registry.apart = true
	running := ctx
	ctx, s.stop = context.WithCancel(context.Background())
	if c.Peers != nil {
		s.registry.first = s.leads
		g.leader = s.askLeader
		if err := s.announce(running, c.Peers); err != nil {
			return err
		}
		s.guarding.Go(func() { s.promote(ctx, c.Log) })
		s.guarding.Go(func() { s.untilRemoved(ctx) })
	}
	s.guard(ctx, g, s.shapeOf(client, c.QuotaBytes))
	rules := s.gate(ctx, c, nearReader{s.etcd.Server.KV()}, nearKeys(s.etcd.Server.LeaseTimeToLive))
	if c.Peers != nil {
		rules.newest = s.etcd.Server.LinearizableReadNotify
	}
	s.serve(rules, g)
	return nil
}

// gate returns the rules of the doors. Their watches end with ctx.
func (s *Server) gate(
	ctx context.Context, c ServerConfig, from reader,
	keys func(context.Context, int64) ([][]byte, error),
) gate {
	s.refusals = &refusals{log: c.Log}
	rules := gate{
		members: c.Members, store: &store{from: from}, leases: newLeases(keys), open: newStreams(),
		copies: &copies{}, log: c.Log, refusals: s.refusals, lapsed: &lapsed{},
	}
	if c.Members == nil {
		return rules
	}
	s.refusals.clock = c.Members.Clock
	s.guarding.Go(func() { rules.followRights(ctx, c.Members.Clock, s.registry) })
	s.guarding.Go(func() { rules.follow(ctx, c.Members.Clock, s.registry, c.Log) })
	return rules
}
func (c ServerConfig) withDefaults() ServerConfig {
	if c.Name == "" {
		c.Name = "pando"
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.QuotaBytes == 0 {
		c.QuotaBytes = quotaBytes
	}
	return c
}

// lockDir creates the directory and locks it. A second server fails at once instead of waiting for
// the first.
func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the store's directory: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the store's directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("%w: another server uses the store in %s: stop it first (pando down)",
			pando.ErrExists, dir)
	}
	return f, nil
}

// embedded returns etcd's configuration: small memory, history by revision, and no listeners but
// our doors.
//
// etcd gets no peer listener: a single server has none, and one of several has ours (peers.go).
// etcd's own ignores the path of a unix URL. It would be an abstract socket that every local user
// can open. The URL that a single server advertises is a name only: etcd derives the identity of
// the member and of the cluster from it.
func embedded(c ServerConfig) *embed.Config {
	name := []url.URL{{Scheme: "unix", Path: filepath.Join(c.Dir, "peer")}}

	conf := embed.NewConfig()
	conf.Name, conf.Dir = c.Name, c.Dir
	conf.ListenClientUrls, conf.AdvertiseClientUrls = nil, nil
	conf.ListenPeerUrls, conf.AdvertisePeerUrls = nil, name
	conf.InitialCluster = conf.InitialClusterFromName(c.Name)
	// Only a new store reads the token. Its answers then carry an id that no other store has.
	conf.InitialClusterToken = rand.Text()
	conf.EnableGRPCGateway = false
	conf.TickMs, conf.ElectionMs = tickMilliseconds, electionMilliseconds
	conf.SnapshotCount, conf.SnapshotCatchUpEntries = snapshotEntries, catchUpEntries
	conf.MaxWalFiles, conf.MaxSnapFiles = 2, 2
	conf.AutoCompactionRetention = "0" // size.go compacts, also between two of etcd's rounds
	conf.QuotaBackendBytes = c.QuotaBytes
	conf.MaxTxnOps = batchOperationsMax
	conf.WatchProgressNotifyInterval = 10 * time.Second
	conf.ZapLoggerBuilder = embed.NewZapLoggerBuilder(quiet(c.Log))
	c.Peers.shared(conf)
	return conf
}

func (s *Server) ready(ctx context.Context, c ServerConfig) error {
	if c.Peers != nil {
		return s.await(ctx, c.Log)
	}
	ctx, cancel := context.WithTimeout(ctx, startWaitMax)
	defer cancel()
	select {
	case <-s.etcd.Server.ReadyNotify():
		return nil
	case err := <-s.etcd.Err():
		return err
	case <-ctx.Done():
		return fmt.Errorf("it is not ready: %w", ctx.Err())
	}
}

func (s *Server) guard(ctx context.Context, g *guard, size shape) {
	if g.check() == nil {
		g.layBallast()
	}
	s.guarding.Go(func() { g.watch(ctx, size) })
}

// serve opens the doors. Each call passes the gate, and each write the guard.
func (s *Server) serve(rules gate, disk *guard) {
	for _, d := range s.doors {
		d.open(s.etcd.Server, grpc.ChainUnaryInterceptor(rules.unary, disk.intercept),
			grpc.ChainStreamInterceptor(rules.stream))
		s.answer(d)
	}
	s.serving.Go(func() { s.end(<-s.etcd.Err()) })
}

// answer serves the clients of an open door, until the door is shut.
func (s *Server) answer(d *door) {
	s.asks.serve(d.server)
	s.serving.Go(func() { s.end(d.serve()) })
}

// end sends the first error to Err. A nil error is a requested end.
func (s *Server) end(err error) {
	if err == nil {
		return
	}
	select {
	case s.ended <- err:
	default:
	}
}

// Registry returns the store's registry in this process, without a socket. It ends with the server.
func (s *Server) Registry() *Registry { return s.registry }

// MembersAddress returns the address:port for members, or "" if there is none.
func (s *Server) MembersAddress() string {
	for _, d := range s.doors {
		if d.identity != nil {
			return d.Addr().String()
		}
	}
	return ""
}

// Err returns a channel that receives the error of an unexpected end.
func (s *Server) Err() <-chan error { return s.ended }

// Close ends the server in the one fast order: its own client, the connections of others, raft, the
// rest.
func (s *Server) Close() error {
	var err error
	s.closed.Do(func() {
		if s.stop != nil {
			s.stop()
			s.guarding.Wait()
		}
		if s.registry != nil {
			err = s.registry.Close()
		}
		for _, d := range s.doors {
			d.shut()
		}
		s.peers.shut()
		if s.etcd != nil {
			s.etcd.Close()
		}
		s.serving.Wait()
		if s.lock != nil {
			err = errors.Join(err, s.lock.Close())
		}
	})
	return err
}
