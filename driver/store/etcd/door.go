package etcd

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"os"
	"sync"
	"time"

	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"pando.run/pando"
)

// door serves etcd's services to clients, on a listener that closes at once. etcd's own listeners
// wait for their clients: 5 s for a host that was cut off with an open watch, for ever for a silent
// connection.
type door struct {
	*listener
	identity *tls.Config // the server's; nil on the unix socket, which only root may open
	server   *grpc.Server
}

// doors opens the listeners that c configures. No client is accepted before serve.
func (c ServerConfig) doors() (all []*door, err error) {
	if c.ClientSocket != "" {
		l, err := listenUnix(c.ClientSocket)
		if err != nil {
			return nil, err
		}
		all = append(all, &door{listener: l})
	}
	if c.Members == nil {
		return all, nil
	}
	identity := c.Members.TLS
	if identity == nil || identity.ClientAuth != tls.RequireAndVerifyClientCert {
		return all, fmt.Errorf("%w: the door for members verifies no certificate", pando.ErrInvalid)
	}
	l, err := net.Listen("tcp", c.Members.Listen)
	if err != nil {
		return all, fmt.Errorf("listen for members: %w", err)
	}
	if c.Members.Bound != nil {
		l = c.Members.Bound(l)
	}
	return append(all, &door{listener: newListener(l), identity: identity}), nil
}

func fitsSocket(path string) error {
	if len(path) > socketPathMax {
		return fmt.Errorf("%w: the socket path %q is longer than %d bytes: choose a shorter directory",
			pando.ErrInvalid, path, socketPathMax)
	}
	return nil
}

// listenUnix creates a socket for root only. It replaces the socket of a dead server.
func listenUnix(path string) (*listener, error) {
	if err := fitsSocket(path); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove a stale socket: %w", err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen for agents: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("listen for agents: %w", err), l.Close())
	}
	return newListener(l), nil
}

// The server drops a cut-off member after memberSilenceMax + memberAnswerMax.
const (
	memberSilenceMax = 10 * time.Second
	memberAnswerMax  = 3 * time.Second
	memberPingMin    = 5 * time.Second // a client may ping no more often
	greetingWaitMax  = 5 * time.Second // from a new connection to the end of its handshake
)

// open creates the server behind the door. guards check every call first.
func (d *door) open(s *etcdserver.EtcdServer, guards ...grpc.ServerOption) {
	d.server = v3rpc.Server(s, d.identity, nil, append(guards, bearing...)...)
}

// lead creates the server behind the door, which passes calls to a foreign etcd. guards check every
// call first.
func (d *door) lead(to *passage, guards ...grpc.ServerOption) {
	of := append(append(guards, bearing...), grpc.MaxRecvMsgSize(requestBytesMax),
		grpc.MaxSendMsgSize(math.MaxInt32))
	if d.identity != nil {
		of = append(of, grpc.Creds(credentials.NewTLS(d.identity)))
	}
	d.server = grpc.NewServer(of...)
	to.serve(d.server)
}

// requestBytesMax bounds the request of a client, as the embedded etcd does.
const requestBytesMax = 2 << 20

// bearing bounds the time of silent clients.
var bearing = []grpc.ServerOption{
	grpc.ConnectionTimeout(greetingWaitMax),
	grpc.KeepaliveParams(keepalive.ServerParameters{Time: memberSilenceMax, Timeout: memberAnswerMax}),
	grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: memberPingMin}),
}

// serve accepts clients until shut.
func (d *door) serve() error { return d.server.Serve(d.listener) }

// shut ends every call and connection.
func (d *door) shut() {
	if d.server != nil {
		d.server.Stop()
	}
	d.listener.Close()
}

// listener is a net.Listener that also closes its accepted connections when it closes.
type listener struct {
	net.Listener
	mu sync.Mutex
	in map[*visitor]bool // nil once closed
}

// visitor is an accepted connection that its listener can close.
type visitor struct {
	net.Conn
	of *listener
}

func newListener(l net.Listener) *listener {
	return &listener{Listener: l, in: map[*visitor]bool{}}
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	v := &visitor{c, l}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.in == nil {
		return nil, errors.Join(net.ErrClosed, c.Close())
	}
	l.in[v] = true
	return v, nil
}

func (l *listener) Close() error {
	err := l.Listener.Close()
	l.mu.Lock()
	in := l.in
	l.in = nil
	l.mu.Unlock()
	for v := range in {
		v.Conn.Close()
	}
	return err
}

// NetConn returns the connection below, as tls.Conn does.
func (v *visitor) NetConn() net.Conn { return v.Conn }

func (v *visitor) Close() error {
	v.of.mu.Lock()
	delete(v.of.in, v)
	v.of.mu.Unlock()
	return v.Conn.Close()
}
