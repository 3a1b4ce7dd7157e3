package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"pando.run/pando"
)

// ServerConfig says where an embedded store lives. It has one member; a cluster of three is an etcd of your own (Dial).
type ServerConfig struct {
	Dir          string       // of the data; made if it is not there
	ClientSocket string       // unix path for agents, mode 0600; "" for none but this process
	Members      *Members     // how other hosts reach it; nil: not at all
	Name         string       // of the member: "pando" unless given
	Log          *slog.Logger // errors and what happens to the disk; slog.Default() unless given
}

// The embedded server is for one member: no heartbeat can be missed, so the election may be short, and a start waits for
// nothing else. It has at least five ticks, each of which wakes a machine that may be idle.
const (
	tickMilliseconds     = 50
	electionMilliseconds = 250
	startWaitMax         = 30 * time.Second
	historyRevisions     = "20000" // kept for watches that resume
	snapshotEntries      = 5000    // raft entries between two snapshots: they are kept in memory
	catchUpEntries       = 500
	batchOperationsMax   = 1024
	socketPathMax        = 107
)

// Server is an embedded etcd.
type Server struct {
	etcd     *embed.Etcd
	registry *Registry
	lock     *os.File
	stop     context.CancelFunc // of the guard and of the gate
	guarding sync.WaitGroup
	doors    []*door
	serving  sync.WaitGroup // the doors, and the watch for etcd's own end
	ended    chan error     // what Err tells, the first only
	closed   sync.Once
}

var shrinkSegments = sync.OnceFunc(func() { wal.SegmentSizeBytes = segmentBytes })

// Start runs an etcd in this process and returns once it takes writes. ctx bounds the start only; end it with Close.
//
// A failing disk still ends the process (etcd knows no other way), so what must not die with the store belongs into
// another one. A full disk does not: writes are refused with pando.ErrStoreFull before it comes to that.
func Start(ctx context.Context, c ServerConfig) (*Server, error) {
	c = c.withDefaults()
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
		g.dropBallast() // what it was kept for: etcd allocates while it starts
	}
	if s.doors, err = c.doors(); err != nil {
		return err
	}
	shrinkSegments()
	if s.etcd, err = embed.StartEtcd(embedded(c)); err != nil {
		return err
	}
	if err := s.ready(ctx); err != nil {
		return err
	}
	client := v3client.New(s.etcd.Server)
	s.registry = newRegistry(client, g)
	ctx, s.stop = context.WithCancel(context.Background())
	s.guard(ctx, g, client)
	rules := gate{c.Members, &store{s.etcd.Server.KV()}, newLeases(s.etcd.Server.LeaseTimeToLive), newStreams()}
	if c.Members != nil {
		s.guarding.Go(func() { rules.follow(ctx, s.registry, c.Log) })
	}
	s.serve(rules, g)
	return nil
}

func (c ServerConfig) withDefaults() ServerConfig {
	if c.Name == "" {
		c.Name = "pando"
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return c
}

// lockDir makes the directory and claims it, so that a second server says so instead of waiting for the first.
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
		return nil, fmt.Errorf("%w: another server uses the store in %s: stop it first (pando down)", pando.ErrExists, dir)
	}
	return f, nil
}

// embedded is etcd's configuration: small memory, history by revision, and no way in but our doors.
//
// The store has one member, so etcd gets no peer listener. etcd serves peers without authentication, and it ignores the path
// of a unix URL: such a listener is an abstract socket that every local user can open. The advertised URL is a name only:
// etcd derives the identity of the member and of the cluster from it.
func embedded(c ServerConfig) *embed.Config {
	name := []url.URL{{Scheme: "unix", Path: filepath.Join(c.Dir, "peer")}}

	conf := embed.NewConfig()
	conf.Name, conf.Dir = c.Name, c.Dir
	conf.ListenClientUrls, conf.AdvertiseClientUrls = nil, nil
	conf.ListenPeerUrls, conf.AdvertisePeerUrls = nil, name
	conf.InitialCluster = conf.InitialClusterFromName(c.Name)
	conf.EnableGRPCGateway = false
	conf.TickMs, conf.ElectionMs = tickMilliseconds, electionMilliseconds
	conf.SnapshotCount, conf.SnapshotCatchUpEntries = snapshotEntries, catchUpEntries
	conf.MaxWalFiles, conf.MaxSnapFiles = 2, 2
	conf.AutoCompactionMode, conf.AutoCompactionRetention = embed.CompactorModeRevision, historyRevisions
	conf.QuotaBackendBytes = quotaBytes
	conf.MaxTxnOps = batchOperationsMax
	conf.WatchProgressNotifyInterval = 10 * time.Second
	conf.ZapLoggerBuilder = embed.NewZapLoggerBuilder(quiet(c.Log))
	return conf
}

func (s *Server) ready(ctx context.Context) error {
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

func (s *Server) guard(ctx context.Context, g *guard, c *clientv3.Client) {
	if g.check() == nil {
		g.layBallast()
	}
	// Not through the client, which has it written into the log of raft, with an fsync.
	alarmed := func() bool { return len(s.etcd.Server.Alarms()) > 0 }
	// Not through the client: in-process, its Defragment dereferences a nil pointer (etcd 3.7.3).
	s.guarding.Go(func() { g.watch(ctx, c, alarmed, s.etcd.Server.Backend().Defrag) })
}

// serve opens the doors. What goes through a gate is held against the rules and the disk.
func (s *Server) serve(rules gate, disk *guard) {
	for _, d := range s.doors {
		d.open(s.etcd.Server, grpc.ChainUnaryInterceptor(rules.unary, disk.intercept), grpc.ChainStreamInterceptor(rules.stream))
		s.serving.Go(func() { s.end(d.serve()) })
	}
	s.serving.Go(func() { s.end(<-s.etcd.Err()) })
}

// end tells of an end, the first of which is what Err is about; nil is one that was asked for.
func (s *Server) end(err error) {
	if err == nil {
		return
	}
	select {
	case s.ended <- err:
	default:
	}
}

// Registry is the store as this process sees it, without a socket in between. It ends with the server.
func (s *Server) Registry() *Registry { return s.registry }

// MembersAddress is where members reach the store, as address:port; "" for nowhere.
func (s *Server) MembersAddress() string {
	for _, d := range s.doors {
		if d.identity != nil {
			return d.Addr().String()
		}
	}
	return ""
}

// Err tells of an end of the store that nobody asked for.
func (s *Server) Err() <-chan error { return s.ended }

// Close ends the server in the one order that is fast: its own client, the connections of others, raft, the rest.
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
		if s.etcd != nil {
			s.etcd.Close()
		}
		s.serving.Wait()
		err = errors.Join(err, s.lock.Close())
	})
	return err
}
