package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	"pando.run/pando"
)

// A request may wait for minutes, and a stream for days. A daemon that is stopped or out of reach
// accepts a request too, and never answers. So the client asks for a sign of life while nothing comes.
const (
	pulseAfter = 2 * time.Second  // without a byte
	pulseWait  = time.Second      // for a sign of life, and between two of a request without an answer
	pulseIdle  = 3 * time.Second  // between two on an open stream
	silentMax  = 10 * time.Second // without a sign of life: the request is given up
)

// silence is the error of a daemon that gave no sign of life.
type silence struct{ who string }

func (s silence) Error() string {
	return fmt.Sprintf("%v: %s gave no sign of life for %s", pando.ErrUnavailable, s.who, silentMax)
}

func (s silence) Unwrap() error { return pando.ErrUnavailable }

// do sends a request. It reports a daemon without a sign of life to Waits, and then gives up, before
// the answer and while a stream is open. It gives up no open session, because its command runs on.
func (c *Client) do(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	l := &lifeline{c: c, ctx: ctx, answered: make(chan struct{}), watched: make(chan struct{}),
		last: c.clock.Now(), session: r.Header.Get("Upgrade") != ""}
	l.end = func() {
		cancel(nil)
		<-l.watched
	}
	go func() {
		defer close(l.watched)
		if err := l.watch(); err != nil {
			cancel(err)
		}
	}()
	resp, err := c.http.Do(c.traced(r.WithContext(ctx)))
	close(l.answered)
	if err == nil {
		read := &body{resp.Body, l}
		resp.Body = read
		if w, ok := read.ReadCloser.(io.Writer); ok {
			resp.Body = duplex{read, w}
		}
		return resp, nil
	}
	l.end()
	if lost := l.silence(); lost != nil {
		return nil, unknownOutcome(r, lost)
	}
	return nil, err
}

// unknownOutcome returns the error of a request without an answer. A change may take effect later.
func unknownOutcome(r *http.Request, err error) error {
	if r.Method == http.MethodGet {
		return err
	}
	return fmt.Errorf("%w; the change may take effect once it runs on: read it back then", err)
}

// lifeline watches the signs of life of the daemon that answers a request.
type lifeline struct {
	c        *Client
	ctx      context.Context
	answered chan struct{} // the answer has begun
	watched  chan struct{} // watch has ended
	end      func()
	session  bool
	mu       sync.Mutex
	last     time.Time // of a byte or a sign of life
}

// body is the body of an answer. Its end ends the context of the request.
type body struct {
	io.ReadCloser
	l *lifeline
}

// Read implements io.Reader. The silence of the daemon is the error, and not its consequence.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.l.heard()
	}
	if lost := b.l.silence(); err != nil && lost != nil {
		err = lost
	}
	return n, err
}

// Close implements io.Closer.
func (b *body) Close() error {
	defer b.l.end()
	return b.ReadCloser.Close()
}

// duplex is the body of an answer that became a session.
type duplex struct {
	*body
	io.Writer
}

// silence returns the silence for which the request was given up, or nil.
func (l *lifeline) silence() error {
	if lost, silent := errors.AsType[silence](context.Cause(l.ctx)); silent {
		return lost
	}
	return nil
}

// heard notes a byte or a sign of life.
func (l *lifeline) heard() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = l.c.clock.Now()
}

// quiet returns how long the daemon has given no sign of life.
func (l *lifeline) quiet() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.c.clock.Now().Sub(l.last)
}

// open reports whether the answer has begun.
func (l *lifeline) open() bool {
	select {
	case <-l.answered:
		return true
	default:
		return false
	}
}

// watch asks for signs of life while nothing comes, until the request ends. It returns a silence if
// none came for too long.
func (l *lifeline) watch() error {
	told := false
	for rest := pulseAfter; ; {
		due, stop := l.c.clock.After(rest)
		select {
		case <-l.ctx.Done():
			stop()
			return nil
		case <-due:
		}
		rest = pulseWait
		if l.open() {
			rest = pulseIdle
		}
		if left := pulseAfter - l.quiet(); left > 0 && !told {
			rest = left
			continue
		}
		if l.c.pulse(l.ctx) {
			l.heard()
			told = false
			continue
		}
		if l.ctx.Err() != nil {
			return nil
		}
		rest = pulseWait
		if !told && l.c.Waits != nil {
			l.c.Waits("a sign of life of " + l.c.daemon())
			told = true
		}
		if l.quiet() >= silentMax && !(l.session && l.open()) {
			return silence{l.c.daemon()}
		}
	}
}

// pulse reports whether the daemon gives a sign of life in time. Every HTTP server answers this
// request by itself, so it waits for no lock and no other machine.
func (c *Client) pulse(ctx context.Context) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	late, stop := c.clock.After(pulseWait)
	defer stop()
	lives := make(chan bool, 1)
	go func() {
		u := &url.URL{Scheme: "http", Host: "pando", Opaque: "*"}
		r := (&http.Request{Method: http.MethodOptions, URL: u, Host: u.Host}).WithContext(ctx)
		resp, err := c.http.Do(r)
		if err == nil {
			resp.Body.Close()
		}
		lives <- err == nil
	}()
	select {
	case is := <-lives:
		return is
	case <-late:
		return false
	}
}

// daemon names the daemon that should answer.
func (c *Client) daemon() string {
	if c.Daemon != nil {
		if who := c.Daemon(); who != "" {
			return who
		}
	}
	return "the daemon behind " + c.socket
}
