// Package etcd stores the registry in etcd. The etcd is embedded in this process (Start), reached
// over a socket (Dial), or runs without Pando (Foreign).
//
// It maps package pando's transactions, watches, leaderships, host leases and errors to those of
// etcd. The registry never decides anything and never decodes a record. Only the gate decodes
// records, to check the writes of other hosts.
package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"pando.run/pando"
)

var _ pando.Registry = (*Registry)(nil)

// Registry is package pando's Registry over one etcd client. Its methods may be called from any
// goroutine.
type Registry struct {
	client *clientv3.Client
	guard  *guard // nil over a socket: the server has its own guard
	line   *line  // nil in the server's process
	// first reports whether the server of this process leads the others. Its control takes the lead
	// too, so that both outlive a lost server in the time of one election. Nil: it is no server.
	first func() bool
	paged int64 // records of one answer of a Snapshot; tests lower it
	// apart gives each watch a stream of its own. The watches of one etcd client share one stream
	// otherwise, and a client whose watches end all at once may block that stream for good.
	apart  bool
	opens  atomic.Uint64 // watches with a stream of their own, so far
	close  sync.Once
	err    error // of close
	asking asking

	mu     sync.Mutex
	leases map[pando.Fence]clientv3.LeaseID // of the hosts that joined through this registry
}

func newRegistry(c *clientv3.Client, g *guard) *Registry {
	return &Registry{
		client: c, guard: g, paged: pageRecords, leases: map[pando.Fence]clientv3.LeaseID{},
	}
}

const (
	// A restarting server is back in 0.2 s. A longer wait between two attempts would only add to that.
	reconnectWaitMax = 100 * time.Millisecond
	// The bound of a call without a deadline.
	callWaitMax = 5 * time.Second
	// Attempts of a read before it reports ErrUnavailable.
	readAttempts = 4
	// A client drops a silent server after lineSilenceMax + lineAnswerMax.
	lineSilenceMax = 10 * time.Second
	lineAnswerMax  = 3 * time.Second
)

// quickly makes a client connect again soon.
var quickly = grpc.WithConnectParams(grpc.ConnectParams{
	Backoff: backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
		MaxDelay: reconnectWaitMax},
	MinConnectTimeout: time.Second,
})

// Dial returns a registry over the etcd at endpoint: "unix:///path", "http://host:port" or
// "https://host:port". It does not wait for the server. Calls fail with pando.ErrUnavailable until
// the server answers, and again while it restarts. The registry ends with ctx or with Close.
//
// identity is the member's, for https; nil otherwise. from is the member's address, if it matters:
// the server admits a member from its own address only.
func Dial(
	ctx context.Context, endpoint string, identity *tls.Config, from ...netip.Addr,
) (*Registry, error) {
	l, err := newLine(endpoint, identity, from)
	if err != nil {
		return nil, err
	}
	return dialLine(ctx, l)
}

func dialLine(ctx context.Context, l *line, more ...grpc.DialOption) (*Registry, error) {
	c, err := clientv3.New(clientv3.Config{
		Context:              ctx,
		Endpoints:            []string{"http://line"}, // the line dials, also with TLS
		DialKeepAliveTime:    lineSilenceMax,
		DialKeepAliveTimeout: lineAnswerMax,
		MaxUnaryRetries:      readAttempts,
		Logger:               zap.NewNop(),
		DialOptions:          append(more, grpc.WithContextDialer(l.dial), quickly),
	})
	if err != nil {
		return nil, fmt.Errorf("dial the store at %s: %w", l.at, err)
	}
	r := newRegistry(c, nil)
	r.line = l
	return r, nil
}

// Close ends every watch, leadership and host lease of this registry. The leases are not revoked:
// they expire.
func (r *Registry) Close() error {
	r.close.Do(func() {
		r.asking.mu.Lock()
		defer r.asking.mu.Unlock()
		r.err = r.asking.close()
		if err := r.client.Close(); err != nil && r.client.Ctx().Err() == nil {
			r.err = errors.Join(r.err, fmt.Errorf("close the store's client: %w", err))
		}
	})
	return r.err
}

// pageRecords bounds the records of one answer. A large cluster's records do not fit into the time
// of one call.
const pageRecords = 20_000

// Snapshot reads every record under prefix, linearizably. It reads page by page, all at the
// revision of the first. ctx bounds the whole read; each page has a deadline of its own.
func (r *Registry) Snapshot(ctx context.Context, prefix pando.Key) (pando.Snapshot, error) {
	var s pando.Snapshot
	end := clientv3.GetPrefixRangeEnd(string(prefix))
	for from := string(prefix); ; {
		resp, err := r.page(ctx, from, end, s.Revision)
		if err != nil {
			return pando.Snapshot{}, fmt.Errorf("read %s*: %w", prefix, err)
		}
		if s.Revision == 0 {
			s.Revision = pando.StoreRevision(resp.Header.Revision)
			s.Store = pando.StoreID(resp.Header.ClusterId)
			s.Records = make([]pando.Record, 0, resp.Count)
		}
		for _, kv := range resp.Kvs {
			s.Records = append(s.Records, record(kv))
		}
		if !resp.More || len(resp.Kvs) == 0 {
			return s, nil
		}
		from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}

// page reads the first records of a range, at a revision or, for 0, at the newest.
func (r *Registry) page(
	ctx context.Context, from, end string, at pando.StoreRevision,
) (*clientv3.GetResponse, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	resp, err := r.client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(r.paged),
		clientv3.WithRev(int64(at)))
	return resp, sentinel(ctx, err)
}

// Heard returns the time since a host's agent renewed its lease, to the second. It returns
// ErrNotFound for a host without a lease.
func (r *Registry) Heard(ctx context.Context, h pando.HostName) (time.Duration, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	got, err := r.client.Get(ctx, string(pando.HostKey(h)), clientv3.WithKeysOnly())
	if err != nil {
		return 0, fmt.Errorf("look for host %s: %w", h, sentinel(ctx, err))
	}
	if len(got.Kvs) == 0 {
		return 0, fmt.Errorf("the lease of host %s: %w", h, pando.ErrNotFound)
	}
	left, err := r.client.TimeToLive(ctx, clientv3.LeaseID(got.Kvs[0].Lease))
	if err != nil {
		return 0, fmt.Errorf("the lease of host %s: %w", h, sentinel(ctx, err))
	}
	return time.Duration(max(0, left.GrantedTTL-left.TTL)) * time.Second, nil
}

// bounded adds a deadline to a call without one.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, callWaitMax)
}
