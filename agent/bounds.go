package agent

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"pando.run/pando"
	"pando.run/pando/scale"
)

// These bounds limit one instance's share of its agent, because all instances of the host share the
// agent. Package state has the bounds of an instance's state.
const (
	connectionsMax = 64 // to its own socket; the agent answers one more with 503 and closes it
	workMax        = 8  // concurrent requests except event streams; further ones wait
	refuseWait     = 10 * time.Millisecond
	bodyWaitMax    = 30 * time.Second // for the whole body of a request
	idleWaitMax    = 5 * time.Minute
	headerBytesMax = 16 << 10
	asksBurst      = 200 // asks in a row, before the limit of one per askWait applies
	askWait        = 20 * time.Millisecond
	metricsMax     = 256 // numbers in its metrics
)

// serve starts the HTTP server of the instance's API.
func (r *runner) serve(box pando.Sandbox) {
	server := &http.Server{
		Handler:           bounded(r.a.Serve(r.a.self, r.id)),
		ReadHeaderTimeout: 10 * time.Second, IdleTimeout: idleWaitMax, MaxHeaderBytes: headerBytesMax,
		ConnState: r.caller.connected,
	}
	r.a.spawn(func(ctx context.Context) {
		stop := context.AfterFunc(ctx, func() { server.Close() })
		defer stop()
		l := &fewListener{
			Listener: box.Listener(), free: make(chan struct{}, connectionsMax), ctx: ctx, clock: r.a.Clock,
		}
		if err := server.Serve(l); err != nil && ctx.Err() == nil {
			r.a.Log.Debug("an instance's API ended", "instance", r.id, "error", err)
		}
	})
}

// bounded lets workMax requests work at a time and gives each body bodyWaitMax. The agent holds
// only the head of a waiting request, because it has not read the body.
func bounded(next http.Handler) http.Handler {
	work := make(chan struct{}, workMax)
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Path == "/v1/self/events" { // connectionsMax bounds these
			next.ServeHTTP(w, q)
			return
		}
		select {
		case work <- struct{}{}:
			defer func() { <-work }()
		case <-q.Context().Done():
			return
		}
		if q.ContentLength != 0 {
			c := http.NewResponseController(w)
			// This fails on a connection without deadlines, which needs none.
			// The runtime compares a deadline with its own clock, which may differ from a pando.Clock.
			late, done := context.WithTimeout(context.Background(), bodyWaitMax)
			stop := context.AfterFunc(late, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })
			defer func() {
				stop()
				done()
			}()
			q.Body = &timedBody{ReadCloser: q.Body, over: func() { stop() }}
		}
		next.ServeHTTP(w, q)
	})
}

// timedBody lifts the deadline after the body ends, because the answer may take longer.
type timedBody struct {
	io.ReadCloser
	over func()
	once sync.Once
}

func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		b.once.Do(b.over)
	}
	return n, err
}

// fewListener keeps at most connectionsMax connections open.
type fewListener struct {
	net.Listener
	free  chan struct{} // holds an element for each open connection
	ctx   context.Context
	clock pando.Clock
}

// tooMany is the answer to a connection above the bound.
var tooMany = func() string {
	body := fmt.Sprintf(`{"title":"Service Unavailable","status":503,"code":"unavailable",`+
		`"detail":"the instance has %d connections to its API open, the most it may have: close one"}`,
		connectionsMax)
	return fmt.Sprintf("HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json"+
		"\r\nConnection: close\r\nRetry-After: 1\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}()

// Accept implements net.Listener.
func (l *fewListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case l.free <- struct{}{}:
			return &fewConn{Conn: c, free: l.free}, nil
		default:
		}
		_, _ = io.WriteString(c, tooMany) // fits the buffer of the socket, so it does not block
		c.Close()
		if err := pando.Sleep(l.ctx, l.clock, refuseWait); err != nil { // keeps refusals cheap
			return nil, err
		}
	}
}

type fewConn struct {
	net.Conn
	free chan struct{}
	once sync.Once
}

// Close implements net.Conn.
func (c *fewConn) Close() error {
	c.once.Do(func() { <-c.free })
	return c.Conn.Close()
}

// pace spaces the asks of one instance, because each ask is a durable record.
type pace struct {
	mu   sync.Mutex
	next time.Time // when the bucket is empty
}

// wait returns when the instance may ask again.
func (p *pace) wait(ctx context.Context, c pando.Clock) error {
	p.mu.Lock()
	now := c.Now()
	if p.next.Before(now) {
		p.next = now
	}
	p.next = p.next.Add(askWait)
	late := p.next.Sub(now) - asksBurst*askWait
	p.mu.Unlock()
	if late <= 0 {
		return nil
	}
	return pando.Sleep(ctx, c, late)
}

// door bounds the asks of each service on this host, also while control is out of reach and each
// ask is written by this agent.
type door struct {
	mu sync.Mutex
	scale.Door
}

func (d *door) admit(s pando.ServiceKey, now time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.Admit(s, 0, now)
}
