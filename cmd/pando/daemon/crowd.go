package daemon

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"

	"pando.run/pando"
	"pando.run/pando/access/share"
)

// The bounds of the connections to one port, by what the other end has shown. Strangers never take
// the places of members and tokens. Half of all places are for certificates.
var (
	memberConnections   = share.Bound{Total: 2048, Each: 128} // with a certificate, by address
	tokenConnections    = share.Bound{Total: 1024, Each: 128} // with a valid token, by tenant
	strangerConnections = share.Bound{Total: 1024, Each: 128} // by address, or by /64 of IPv6
)

// crowd is a listener that bounds the open connections of members, tokens and strangers. When the
// places of strangers are full, it closes the oldest stranger for a new one: a flood lasts, and a
// caller shows its certificate or its token within milliseconds.
type crowd struct {
	net.Listener
	members   *share.Pool[netip.Addr]
	tokens    *share.Pool[pando.Tenant]
	strangers *share.Pool[netip.Prefix]

	mu    sync.Mutex
	queue []*guest // of strangers, oldest first
}

// bounded limits the open connections of a listener.
func bounded(l net.Listener) net.Listener {
	return &crowd{Listener: l, members: share.New[netip.Addr](memberConnections),
		tokens:    share.New[pando.Tenant](tokenConnections),
		strangers: share.New[netip.Prefix](strangerConnections)}
}

// listenTLS listens for other hosts.
func listenTLS(address string, c *tls.Config) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for other hosts: %w; choose another address with --listen", err)
	}
	return tls.NewListener(bounded(l), recognizing(c)), nil
}

// Accept returns the next connection that is within the bounds. It closes the others.
func (c *crowd) Accept() (net.Conn, error) {
	for {
		conn, err := c.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from, _ := netip.ParseAddrPort(conn.RemoteAddr().String())
		g := &guest{Conn: &impatient{conn, writeWaitMax}, of: c, from: from.Addr().Unmap().WithZone("")}
		if c.admit(g) {
			return g, nil
		}
		conn.Close()
	}
}

// network returns the addresses that one machine has with certainty: its own, or a /64 of IPv6.
func network(a netip.Addr) netip.Prefix {
	bits := a.BitLen()
	if a.Is6() {
		bits = 64
	}
	p, _ := a.Prefix(bits)
	return p
}

// admit gives a new connection the place of a stranger. It reports whether there was one.
func (c *crowd) admit(g *guest) bool {
	n := network(g.from)
	place, err := c.strangers.Take(n, 1)
	if err != nil && c.strangers.Use(n).Own < strangerConnections.Each {
		if oldest := c.oldest(); oldest != nil {
			oldest.Close()
			place, err = c.strangers.Take(n, 1)
		}
	}
	if err != nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	g.place = place
	c.queue = append(c.queue, g)
	return true
}

// oldest returns the stranger that has been here longest, or nil.
func (c *crowd) oldest() *guest {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.queue) == 0 {
		return nil
	}
	return c.queue[0]
}

// guest is an accepted connection, which counts towards the bounds.
type guest struct {
	net.Conn
	of    *crowd
	from  netip.Addr
	place interface{ Close() } // the lock of the crowd guards it
	known bool                 // no stranger; likewise
	ended bool                 // likewise
}

// Close closes the connection and frees its place.
func (g *guest) Close() error {
	g.of.mu.Lock()
	g.leave()
	g.ended = true
	g.of.mu.Unlock()
	return g.Conn.Close()
}

// leave frees the place. The caller holds the lock of the crowd.
func (g *guest) leave() {
	if g.place != nil {
		g.place.Close()
		g.place = nil
	}
	if g.known || g.ended {
		return
	}
	for n, one := range g.of.queue {
		if one == g {
			g.of.queue = append(g.of.queue[:n], g.of.queue[n+1:]...)
			return
		}
	}
}

// become gives a stranger a place among the known.
func (g *guest) become(take func() (interface{ Close() }, error)) error {
	g.of.mu.Lock()
	defer g.of.mu.Unlock()
	if g.known || g.ended {
		return nil
	}
	place, err := take()
	if err != nil {
		return err
	}
	g.leave()
	g.place, g.known = place, true
	return nil
}

// becomeMember gives a connection with a certificate its place.
func (g *guest) becomeMember() error {
	err := g.become(func() (interface{ Close() }, error) { return g.of.members.Take(g.from, 1) })
	if err != nil {
		return fmt.Errorf("connections from %s: %w", g.from, err)
	}
	return nil
}

// becomeCaller gives a connection with a valid token of a tenant its place.
func (g *guest) becomeCaller(t pando.Tenant) error {
	err := g.become(func() (interface{ Close() }, error) { return g.of.tokens.Take(t, 1) })
	if err != nil {
		return fmt.Errorf("connections with tokens of tenant %s: %w; close some", t, err)
	}
	return nil
}

// recognizing returns a configuration that gives connections with a verified certificate their
// places at the end of the handshake.
func recognizing(c *tls.Config) *tls.Config {
	out := c.Clone()
	out.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		now := c
		if c.GetConfigForClient != nil {
			newest, err := c.GetConfigForClient(h)
			if err != nil {
				return nil, err
			}
			now = newest
		}
		g := guestOf(h.Conn)
		if g == nil {
			return now, nil
		}
		now = now.Clone()
		verify := now.VerifyConnection
		now.VerifyConnection = func(s tls.ConnectionState) error {
			if verify != nil {
				if err := verify(s); err != nil {
					return err
				}
			}
			if len(s.VerifiedChains) == 0 {
				return nil
			}
			return g.becomeMember()
		}
		return now, nil
	}
	return out
}

// guestOf returns the guest below a connection, or nil.
func guestOf(c net.Conn) *guest {
	for {
		switch at := c.(type) {
		case *guest:
			return at
		case interface{ NetConn() net.Conn }:
			c = at.NetConn()
		default:
			return nil
		}
	}
}

type guestKey struct{}

// byGuest marks the requests of a connection with its place.
func byGuest(ctx context.Context, c net.Conn) context.Context {
	if g := guestOf(c); g != nil {
		return context.WithValue(ctx, guestKey{}, g)
	}
	return ctx
}

// counted gives the connection of a request with a valid token its place.
func counted(r *http.Request, t pando.Tenant) error {
	if g, ok := r.Context().Value(guestKey{}).(*guest); ok {
		return g.becomeCaller(t)
	}
	return nil
}
