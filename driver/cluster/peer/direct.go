package peer

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"
)

// direct is a transport for small requests with a waiting caller: the caller's goroutine writes and
// reads itself. An http.Transport uses two more goroutines, and each turn of the scheduler is a
// good part of such an answer's time. The transport uses HTTP/1.1 over kept connections, one
// request at a time on each.
type direct struct {
	dial func(ctx context.Context, network, addr string) (net.Conn, error)
	mu   sync.Mutex
	idle map[string][]*kept // by host, newest last
}

type kept struct {
	net.Conn
	r *bufio.Reader
}

// answerBytesMax bounds an answer, which is read as a whole.
const answerBytesMax = 1 << 20

// RoundTrip implements http.RoundTripper. The other side may have closed a kept connection. A
// request that fails on one is sent again on a new connection, so it may arrive twice.
func (d *direct) RoundTrip(q *http.Request) (*http.Response, error) {
	if c := d.take(q.URL.Host); c != nil {
		a, err := d.ask(c, q)
		if err == nil || q.Context().Err() != nil || q.GetBody == nil {
			return a, err
		}
		if q.Body, err = q.GetBody(); err != nil {
			return nil, err
		}
	}
	addr := q.URL.Host
	if q.URL.Port() == "" {
		addr = net.JoinHostPort(addr, "80")
	}
	c, err := d.dial(q.Context(), "tcp", addr)
	if err != nil {
		return nil, err
	}
	return d.ask(&kept{c, bufio.NewReader(c)}, q)
}

// ask sends a request on a connection, and keeps the connection after a success.
func (d *direct) ask(c *kept, q *http.Request) (*http.Response, error) {
	hurry := context.AfterFunc(q.Context(), func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	a, err := c.exchange(q)
	if !hurry() || err != nil || a.Close {
		c.Close()
	} else {
		d.keep(q.URL.Host, c)
	}
	if err != nil && q.Context().Err() != nil {
		err = q.Context().Err()
	}
	return a, err
}

func (c *kept) exchange(q *http.Request) (*http.Response, error) {
	var out bytes.Buffer // one write: the other side is woken once
	if err := q.WithContext(context.Background()).Write(&out); err != nil {
		return nil, err
	}
	_, err := c.Write(out.Bytes())
	// Only once it has left the buffer.
	if t := httptrace.ContextClientTrace(q.Context()); t != nil && t.WroteRequest != nil {
		t.WroteRequest(httptrace.WroteRequestInfo{Err: err})
	}
	if err != nil {
		return nil, err
	}
	a, err := http.ReadResponse(c.r, q)
	if err != nil {
		return nil, err
	}
	defer a.Body.Close()
	b, err := io.ReadAll(io.LimitReader(a.Body, answerBytesMax+1))
	switch {
	case err != nil:
		return nil, err
	case len(b) > answerBytesMax:
		return nil, fmt.Errorf("an answer of more than %d bytes", answerBytesMax)
	}
	a.Body = io.NopCloser(bytes.NewReader(b))
	return a, nil
}

func (d *direct) take(host string) *kept {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := d.idle[host]
	if len(all) == 0 {
		return nil
	}
	c := all[len(all)-1]
	d.idle[host] = all[:len(all)-1]
	return c
}

func (d *direct) keep(host string, c *kept) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.idle[host]) >= idleConns {
		c.Close()
		return
	}
	d.idle[host] = append(d.idle[host], c)
}

// CloseIdleConnections ends the idle connections, as http.Client asks of its transport.
func (d *direct) CloseIdleConnections() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, all := range d.idle {
		for _, c := range all {
			c.Close()
		}
	}
	clear(d.idle)
}
