// Package lifeline sends a request to a daemon that may be stopped or out of reach. A request may wait for
// minutes, and a stream for days. A stopped daemon accepts a request, because its kernel does, and never
// answers. So the caller asks for a sign of life while nothing arrives.
//
// It never repeats a request.
package lifeline

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

// Times of the questions for a sign of life. The silence of a daemon is reported within a second.
const (
	after     = 500 * time.Millisecond // without a byte
	wait      = 400 * time.Millisecond // for a sign of life
	every     = time.Second            // between two of a request without an answer
	idle      = 3 * time.Second        // between two on an open stream
	SilentMax = 10 * time.Second       // without a sign of life: the request is given up
)

// Silence is the error of a daemon that gave no sign of life.
type Silence struct {
	who string
	is  error
}

// Error implements error.
func (s Silence) Error() string {
	return fmt.Sprintf("%v: %s gave no sign of life for %s", s.is, s.who, SilentMax)
}

// Unwrap returns the sentinel of the request.
func (s Silence) Unwrap() error { return s.is }

// Request is how to send a request.
type Request struct {
	Client *http.Client
	Clock  pando.Clock
	// Waits gets a silent daemon, once for each silence. It may be nil.
	Waits func(who string)
	Who   func() string // names the daemon
	// Sentinel is the error that a silence wraps.
	Sentinel error
	// KeepsSession means that an open session is not given up, because its command runs on.
	KeepsSession bool
}

// Do sends a request. It reports a daemon without a sign of life to Waits, and then gives up with a
// Silence, before the answer and while a stream is open.
func (q Request) Do(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	l := &line{q: q, ctx: ctx, answered: make(chan struct{}), watched: make(chan struct{}),
		last: q.Clock.Now(), session: q.KeepsSession && r.Header.Get("Upgrade") != "",
		at: url.URL{Scheme: r.URL.Scheme, Host: r.URL.Host, Opaque: "*"}}
	l.end = func() {
		cancel(nil)
		<-l.watched
	}
	go func() {
		defer close(l.watched)
		err := l.watch()
		if err == nil {
			return
		}
		cancel(err)
		<-l.answered
		if l.conn != nil {
			_ = l.conn.Close() // the read that waits reports the silence
		}
	}()
	resp, err := q.Client.Do(r.WithContext(ctx))
	if err == nil {
		read := &body{resp.Body, l}
		resp.Body = read
		if w, ok := read.ReadCloser.(io.Writer); ok {
			resp.Body = duplex{read, w}
			l.conn = read.ReadCloser
		}
	}
	close(l.answered)
	if err == nil {
		return resp, nil
	}
	l.end()
	if lost := l.silence(); lost != nil {
		return nil, lost
	}
	return nil, err
}

// line watches the signs of life of the daemon that answers a request.
type line struct {
	q        Request
	at       url.URL
	ctx      context.Context
	answered chan struct{} // the answer has begun
	watched  chan struct{} // watch has ended
	end      func()
	session  bool      // it is kept
	conn     io.Closer // of an open session, which its context does not end
	mu       sync.Mutex
	last     time.Time // of a byte or a sign of life
}

// body is the body of an answer. Its end ends the context of the request.
type body struct {
	io.ReadCloser
	l *line
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
func (l *line) silence() error {
	if lost, silent := errors.AsType[Silence](context.Cause(l.ctx)); silent {
		return lost
	}
	return nil
}

// heard notes a byte or a sign of life.
func (l *line) heard() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = l.q.Clock.Now()
}

// quiet returns how long the daemon has given no sign of life.
func (l *line) quiet() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.q.Clock.Now().Sub(l.last)
}

// open reports whether the answer has begun.
func (l *line) open() bool {
	select {
	case <-l.answered:
		return true
	default:
		return false
	}
}

// watch asks for signs of life while nothing comes, until the request ends. It returns a Silence if
// none came for too long.
func (l *line) watch() error {
	told := false
	for rest := after; ; {
		due, stop := l.q.Clock.After(rest)
		select {
		case <-l.ctx.Done():
			stop()
			return nil
		case <-due:
		}
		rest = every
		if l.open() {
			rest = idle
		}
		if left := after - l.quiet(); left > 0 && !told {
			rest = left
			continue
		}
		if l.pulse() {
			l.heard()
			told = false
			continue
		}
		if l.ctx.Err() != nil {
			return nil
		}
		rest = every
		if !told && l.q.Waits != nil {
			l.q.Waits(l.q.Who())
			told = true
		}
		if l.quiet() >= SilentMax && !(l.session && l.open()) {
			return Silence{l.q.Who(), l.q.Sentinel}
		}
	}
}

// pulse reports whether the daemon gives a sign of life in time. Every HTTP server answers this
// request by itself, so it waits for no lock and no other machine.
func (l *line) pulse() bool {
	ctx, cancel := context.WithCancel(l.ctx)
	defer cancel()
	late, stop := l.q.Clock.After(wait)
	defer stop()
	lives := make(chan bool, 1)
	go func() {
		r := (&http.Request{Method: http.MethodOptions, URL: &l.at, Host: l.at.Host}).WithContext(ctx)
		resp, err := l.q.Client.Do(r)
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
