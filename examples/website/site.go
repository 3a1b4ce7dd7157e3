package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// site answers requests, and keeps a line for each until the line is written to the state.
type site struct {
	instance string
	remote   *remote // nil: the lines are state of this service
	server   http.Server
	leaving  atomic.Bool
	served   atomic.Int64

	mu    sync.Mutex
	lines []string // answered, not yet written
	idle  map[net.Conn]bool
	gone  map[net.Conn]bool // closed here, and not yet left by the server
}

func newSite(instance string) *site {
	s := &site{instance: instance, idle: map[net.Conn]bool{}, gone: map[net.Conn]bool{}}
	s.server = http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout: 10 * time.Second, ConnState: s.track, ConnContext: withConn,
		Protocols: new(http.Protocols)}
	s.server.Protocols.SetHTTP1(true)
	s.server.Protocols.SetUnencryptedHTTP2(true)
	return s
}

func (s *site) serve(l net.Listener) error { return s.server.Serve(l) }

// ServeHTTP answers with the name of the instance. The line is kept before the answer is sent. With
// a remote book it is stored before the answer is sent.
func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.ended(r) {
		panic(http.ErrAbortHandler) // the client sends it again: it gets its line there
	}
	n := s.served.Add(1)
	line := fmt.Sprintf("%s-%d %s %s %s", s.instance, n, time.Now().UTC().Format(time.RFC3339Nano),
		r.Method, r.URL.Path)
	if s.remote != nil {
		if err := s.remote.write(line); err != nil {
			http.Error(w, "the book does not answer", http.StatusServiceUnavailable)
			return
		}
	} else {
		s.mu.Lock()
		s.lines = append(s.lines, line)
		s.mu.Unlock()
	}
	w.Header().Set("X-Served-By", s.instance)
	if s.leaving.Load() {
		w.Header().Set("Connection", "close") // the client's next connection goes to another instance
	}
	fmt.Fprintf(w, "Hello from %s\n", s.instance)
}

// take returns the lines of the requests since the last call.
func (s *site) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	lines := s.lines
	s.lines = nil
	return lines
}

// giveBack puts lines back that could not be written.
func (s *site) giveBack(lines []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(lines, s.lines...)
}

// track records idle connections, so that letGo can end them.
func (s *site) track(c net.Conn, state http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case state == http.StateIdle && s.leaving.Load():
		s.end(c)
	case state == http.StateIdle:
		s.idle[c] = true
	default:
		delete(s.idle, c)
	}
	if state == http.StateClosed {
		delete(s.gone, c)
	}
}

// letGo asks every client to leave. Busy connections end with the next answer, and idle ones now.
func (s *site) letGo() {
	s.leaving.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.idle {
		s.end(c)
	}
}

// end closes an idle connection. A request may arrive at that moment. A plain close would then
// reset the connection, which looks broken to the client. So the end of the stream goes out first.
// The client reads it, and sends the request on another connection. The caller holds the lock.
func (s *site) end(c net.Conn) {
	delete(s.idle, c)
	s.gone[c] = true
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite() // fails only on a connection that has ended
	}
	c.Close()
}

// connKey finds the connection of a request in its context.
type connKey struct{}

func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// ended reports whether the connection of a request was closed as idle just before.
func (s *site) ended(r *http.Request) bool {
	c, _ := r.Context().Value(connKey{}).(net.Conn)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gone[c]
}
