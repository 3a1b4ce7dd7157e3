package socket

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"pando.run/pando"
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
