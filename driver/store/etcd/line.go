package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"pando.run/pando"
)

// A line that can choose asks its server for a sign of life this often. It leaves a server that
// does not answer in time: a killed one ends its connections by itself, a stopped one does not.
const (
	lineLook    = 500 * time.Millisecond
	lineWaitMax = time.Second
	lineLookMax = 4 * time.Second // between two looks while no server answers
)

// line connects a registry to one of the store's servers at a time. It chooses the next one when
// the connection breaks, so every call, watch and lease continues there.
type line struct {
	identity *tls.Config // for https
	from     net.Addr    // the member's address; nil: the kernel chooses

	mu      sync.Mutex
	all     []string // endpoints, the preferred one first
	at      string   // the endpoint in use or to try first
	conn    net.Conn // the open connection, if any
	looking bool
}

func newLine(endpoint string, identity *tls.Config, from []netip.Addr) (*line, error) {
	l := &line{all: []string{endpoint}, at: endpoint}
	if identity != nil {
		l.identity = identity.Clone()
		l.identity.NextProtos = []string{"h2"}
	}
	if len(from) > 0 && from[0].IsValid() {
		l.from = net.TCPAddrFromAddrPort(netip.AddrPortFrom(from[0], 0))
	}
	return l, checkEndpoint(endpoint)
}

func checkEndpoint(endpoint string) error {
	u, err := url.Parse(endpoint)
	if err != nil {
		return fmt.Errorf("%w: store endpoint %q: %w", pando.ErrInvalid, endpoint, err)
	}
	switch {
	case u.Scheme == "unix" && u.Host == "" && u.Path != "":
	case (u.Scheme == "http" || u.Scheme == "https") && u.Host != "":
	default:
		return fmt.Errorf("%w: store endpoint %q: want unix:///path/to/socket or http://host:port",
			pando.ErrInvalid, endpoint)
	}
	return nil
}

// dial connects to the current server, or to the next ones if it refuses. A server without an
// answer takes the whole time of ctx, and the next dial begins behind it.
func (l *line) dial(ctx context.Context, _ string) (net.Conn, error) {
	var errs []error
	l.mu.Lock()
	tries := len(l.all)
	l.mu.Unlock()
	for range tries {
		l.mu.Lock()
		at := l.at
		l.mu.Unlock()
		c, err := l.connect(ctx, at)
		if err == nil {
			l.mu.Lock()
			l.conn = c
			l.mu.Unlock()
			return c, nil
		}
		errs = append(errs, err)
		l.leave(at)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(errs...)
}

func (l *line) connect(ctx context.Context, endpoint string) (net.Conn, error) {
	u, err := url.Parse(endpoint)
	if err != nil {
		return nil, err
	}
	if u.Scheme == "unix" {
		return new(net.Dialer).DialContext(ctx, "unix", u.Path)
	}
	c, err := (&net.Dialer{LocalAddr: l.from}).DialContext(ctx, "tcp", u.Host)
	if errors.Is(err, unix.EADDRNOTAVAIL) {
		// A host that has lost its address connects from another one, and learns the reason.
		c, err = new(net.Dialer).DialContext(ctx, "tcp", u.Host)
	}
	if err != nil || u.Scheme == "http" {
		return c, err
	}
	secure := tls.Client(c, expecting(l.identity, u.Hostname()))
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return secure, nil
}

// expecting returns a configuration that expects a name in the server's certificate: its own, or
// else the given one. A member's configuration verifies the certificate itself.
func expecting(c *tls.Config, name string) *tls.Config {
	if c == nil {
		c = &tls.Config{NextProtos: []string{"h2"}}
	}
	if c.ServerName == "" && !c.InsecureSkipVerify {
		c = c.Clone()
		c.ServerName = name
	}
	return c
}

// leave ends the use of a server. The next one in the order is tried first.
func (l *line) leave(endpoint string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at != endpoint {
		return // another call has left it
	}
	n := slices.Index(l.all, endpoint)
	l.at = l.all[(n+1)%len(l.all)]
	if l.conn != nil {
		l.conn.Close() // every call, watch and stream on it fails now and begins anew
		l.conn = nil
	}
}

// use replaces the endpoints. A connection to one that is gone ends.
func (l *line) use(all []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = slices.Clone(all)
	if !slices.Contains(all, l.at) {
		l.at = all[0]
		if l.conn != nil {
			l.conn.Close()
			l.conn = nil
		}
	}
}

func (l *line) current() (at string, choices int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.at, len(l.all)
}

// watch leaves each server that does not answer, until ctx ends. answers returns an error for a
// server without an answer: it hangs, or it has no majority.
func (l *line) watch(ctx context.Context, clock pando.Clock, answers func(context.Context) error) {
	wait := lineLook
	for pando.Sleep(ctx, clock, wait) == nil {
		at, choices := l.current()
		if choices < 2 {
			wait = lineLook
			continue
		}
		call, cancel := context.WithTimeout(ctx, lineWaitMax)
		err := answers(call)
		cancel()
		if err == nil {
			wait = lineLook
			continue
		}
		// While no server answers, each look costs all of them; an election takes seconds.
		wait = min(wait*3/2, lineLookMax)
		l.leave(at)
	}
}

// Use sets the servers of the store, the preferred one first. A registry with several servers
// leaves one that does not answer for a second. An invalid endpoint changes nothing.
func (r *Registry) Use(clock pando.Clock, all []string) error {
	if r.line == nil || len(all) == 0 {
		return fmt.Errorf("%w: no server of the store is named", pando.ErrInvalid)
	}
	for _, e := range all {
		if err := checkEndpoint(e); err != nil {
			return err
		}
	}
	r.line.use(all)
	r.line.mu.Lock()
	defer r.line.mu.Unlock()
	if !r.line.looking && len(all) > 1 {
		r.line.looking = true
		go r.line.watch(r.client.Ctx(), clock, r.answers)
	}
	return nil
}

// At returns the endpoint of the server in use.
func (r *Registry) At() string {
	at, _ := r.line.current()
	return at
}

// answers returns nil if the server in use answers for a majority. A count of keys is the cheapest
// read of that kind.
func (r *Registry) answers(ctx context.Context) error {
	_, err := r.client.Get(ctx, string(pando.LeaderKey("control")), clientv3.WithCountOnly())
	return err
}
