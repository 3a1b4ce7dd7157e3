package daemon

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/driver/clock"
	"pando.run/pando/driver/cluster/peer"
	"pando.run/pando/driver/cluster/trust"
	"pando.run/pando/world"
)

// The bounds of a port that strangers can reach. A host needs only a few connections to each port
// of another host.
const (
	strangerWaitMax   = 10 * time.Second // for the whole request of a caller without a certificate
	idleWaitMax       = 2 * time.Minute  // between two requests of a connection
	writeWaitMax      = time.Minute      // for a reader to take a piece of an answer
	memberReadWaitMax = time.Second      // for reading the record of a member that is not cached yet
)

// impatient is a connection that ends if its reader takes nothing for a while. A stopped reader of
// a stream would otherwise keep its part of the daemon's memory for ever.
type impatient struct {
	net.Conn
	wait time.Duration
}

// Write implements net.Conn.
func (c *impatient) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(c.wait)); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// socket is the listener of a unix socket, with impatient connections.
type socket struct{ net.Listener }

// Accept implements net.Listener.
func (s socket) Accept() (net.Conn, error) {
	c, err := s.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &impatient{c, writeWaitMax}, nil
}

// forStrangers ends a request without a certificate after a wait. The connection closes with the
// answer; the rest of the request is not read.
func forStrangers(next http.Handler, wait time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if peer.Shown(r) == nil {
			c := http.NewResponseController(w)
			_ = c.SetReadDeadline(time.Now().Add(wait)) // a TLS connection supports deadlines
			defer func() { _ = c.SetReadDeadline(time.Now()) }()
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// doorkeeper caches the current members. A certificate is valid for a year, but a membership ends
// when its record is deleted.
type doorkeeper struct {
	registry pando.Registry
	mu       sync.Mutex
	members  map[pando.HostName]pando.Member
	changed  chan struct{}                         // closed and replaced when the members change
	news     func(map[pando.HostName]pando.Member) // gets the members after each change; may be nil
}

func newDoorkeeper(r pando.Registry) *doorkeeper {
	members := map[pando.HostName]pando.Member{}
	return &doorkeeper{registry: r, members: members, changed: make(chan struct{})}
}

const membersPrefix = pando.Root + pando.Key(pando.KindMember) + "/"

// run follows the records of the members until ctx ends.
func (d *doorkeeper) run(ctx context.Context) error {
	follow := func(b pando.Batch, reset bool) {
		d.mu.Lock()
		defer d.mu.Unlock()
		if reset {
			clear(d.members)
		}
		for _, r := range b.Changes {
			name := pando.HostName(r.Key[len(membersPrefix):])
			delete(d.members, name)
			if v, err := world.DecodeAny(r); r.Value != nil && err == nil {
				d.members[name] = v.(pando.Member)
			}
		}
		close(d.changed)
		d.changed = make(chan struct{})
		if d.news != nil {
			d.news(d.members)
		}
	}
	return world.Follow(ctx, clock.Clock{}, d.registry, membersPrefix, follow)
}

// readMember reads the record of one member. It returns ErrForbidden if the host is not a member.
func readMember(ctx context.Context, r pando.Registry, h pando.HostName) (pando.Member, error) {
	// The snapshot includes names that begin with this one.
	s, err := r.Snapshot(ctx, pando.MemberKey(h))
	if err != nil {
		return pando.Member{}, err
	}
	for _, one := range s.Records {
		if one.Key == pando.MemberKey(h) {
			v, err := world.DecodeAny(one)
			if err != nil {
				return pando.Member{}, err
			}
			return v.(pando.Member), nil
		}
	}
	return pando.Member{}, pando.NotMember(h)
}

// member returns the host that a verified certificate belongs to, if it is a member now. It returns
// "" for the server.
func (d *doorkeeper) member(ctx context.Context, c *x509.Certificate) (pando.HostName, error) {
	if c == nil {
		return "", fmt.Errorf("%w: only members of the cluster may ask; "+
			"`pando up --join` makes this host one",
			pando.ErrForbidden)
	}
	if c.Subject.CommonName == trust.ServerName {
		return "", nil
	}
	h, err := trust.HostOf(c)
	if err != nil {
		return "", err
	}
	_, err = d.record(ctx, h, c)
	return h, err
}

// record returns the record of a member that admits a certificate.
func (d *doorkeeper) record(
	ctx context.Context, h pando.HostName, c *x509.Certificate,
) (pando.Member, error) {
	d.mu.Lock()
	m, ok := d.members[h]
	d.mu.Unlock()
	if ok && m.Admits(c.RawSubjectPublicKeyInfo) == nil {
		return m, nil
	}
	// The host may have joined just now, before the cache got its record.
	ctx, cancel := context.WithTimeout(ctx, memberReadWaitMax)
	defer cancel()
	m, err := readMember(ctx, d.registry, h)
	if err != nil {
		return m, err
	}
	return m, m.Admits(c.RawSubjectPublicKeyInfo)
}

// asker returns the member that sent a request. It returns false for everybody else.
func (d *doorkeeper) asker(r *http.Request) (m pando.Member, ok bool) {
	c := peer.Shown(r)
	h, err := d.member(r.Context(), c)
	if err != nil || h == "" {
		return m, false
	}
	m, err = d.record(r.Context(), h, c)
	return m, err == nil
}

// guard admits members only. It ends a request when the membership of the caller ends.
func (d *doorkeeper) guard(next http.Handler) http.Handler {
	next = d.whileMember(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h, err := d.member(r.Context(), peer.Shown(r))
		if err != nil {
			peer.Refuse(w, err)
			return
		}
		next.ServeHTTP(w, r.WithContext(peer.WithAsker(r.Context(), h)))
	})
}

// whileMember ends the requests of a host when its membership ends. Without it, a removed host
// could stream logs and events without limit.
func (d *doorkeeper) whileMember(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := peer.Shown(r)
		if c == nil || c.Subject.CommonName == trust.ServerName {
			next.ServeHTTP(w, r)
			return
		}
		ctx, cancel := context.WithCancelCause(r.Context())
		defer cancel(nil)
		go func() {
			for {
				d.mu.Lock()
				news := d.changed
				d.mu.Unlock()
				select {
				case <-ctx.Done():
					return
				case <-news:
				}
				if _, err := d.member(ctx, c); errors.Is(err, pando.ErrForbidden) {
					cancel(err)
					return
				}
			}
		}()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// fromServer lets only the server run commands inside instances, read their logs and delete volumes. A
// member may ask an agent for the rest, so a captured host starts no program on another.
func fromServer(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := peer.Shown(r)
		kept := r.URL.Path == peer.ExecPath || r.URL.Path == peer.VolumesPath ||
			r.URL.Path == peer.SnapshotsPath || r.URL.Path == peer.MovesPath ||
			r.URL.Path == peer.VolumeFilesPath || r.URL.Path == peer.LogsPath
		if kept && (c == nil || c.Subject.CommonName != trust.ServerName) {
			peer.Refuse(w, fmt.Errorf("%w: only the server may ask for %s",
				pando.ErrForbidden, r.URL.Path))
			return
		}
		next.ServeHTTP(w, r)
	})
}
