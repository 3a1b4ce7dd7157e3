package socket

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando/driver/clock"
)

func TestAnInstanceHasFewConnections(t *testing.T) {
	path := filepath.Join(t.TempDir(), "self")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	few := &fewListener{Listener: l, free: make(chan struct{}, connectionsMax), ctx: t.Context(),
		clock: clock.Clock{}}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
	})}
	go func() { _ = server.Serve(few) }()
	defer server.Close()
	ask := func() (*http.Response, net.Conn) {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		// A refused connection may be closed already.
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: self\r\n\r\n")
		r, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		return r, c
	}
	var open []net.Conn
	for range connectionsMax {
		r, c := ask()
		if r.StatusCode != http.StatusNoContent {
			t.Fatalf("connection %d: %s", len(open)+1, r.Status)
		}
		open = append(open, c)
	}
	r, c := ask()
	c.Close()
	if body, _ := io.ReadAll(r.Body); r.StatusCode != http.StatusServiceUnavailable ||
		!strings.Contains(string(body), "64 connections") {
		t.Errorf("one more is answered %s: %s", r.Status, body)
	}
	open[0].Close()
	for end := time.Now().Add(time.Minute); ; {
		r, c := ask()
		defer c.Close()
		if r.StatusCode == http.StatusNoContent {
			break
		}
		if time.Now().After(end) {
			t.Fatal("no connection was taken after one was closed")
		}
	}
	for _, c := range open {
		c.Close()
	}
}

func TestFewRequestsOfAnInstanceWorkAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most atomic.Int64
		h := bounded(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			most.Store(max(most.Load(), now.Add(1)))
			time.Sleep(time.Second)
			now.Add(-1)
		}))
		for range 5 * workMax {
			go h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/v1/self", nil))
		}
		for range 3 {
			go h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/v1/self/events", nil))
		}
		time.Sleep(time.Minute)
		if n := most.Load(); n != workMax+3 {
			t.Errorf("%d requests worked at a time, want %d and 3 streams", n, workMax)
		}
	})
}

// The agent ends a request if the body is late. An answer may take longer than a body.
func TestABodyHasADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, 1)
		h := bounded(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			_, err := io.ReadAll(q.Body)
			if err == nil {
				time.Sleep(2 * bodyWaitMax)
				err = q.Context().Err()
			}
			ended <- err
		}))
		for _, body := range []string{"12345678", "123"} {
			ours, theirs := net.Pipe()
			server := &http.Server{Handler: h}
			go func() { _ = server.Serve(&oneListener{conn: ours, done: make(chan struct{})}) }()
			go func() { _, _ = io.Copy(io.Discard, theirs) }()
			fmt.Fprintf(theirs, "PUT /v1/self/state/x HTTP/1.1\r\nHost: self\r\nContent-Length: 8\r\n\r\n%s",
				body)
			start := time.Now()
			err := <-ended
			if whole := len(body) == 8; whole != (err == nil) || !whole && time.Since(start) != bodyWaitMax {
				t.Errorf("a body of %d of 8 bytes ended after %s with %v", len(body), time.Since(start), err)
			}
			server.Close()
			theirs.Close()
		}
	})
}

// oneListener accepts one connection.
type oneListener struct {
	conn net.Conn
	done chan struct{}
	used bool
}

func (l *oneListener) Accept() (net.Conn, error) {
	if l.used {
		<-l.done
		return nil, net.ErrClosed
	}
	l.used = true
	return l.conn, nil
}
func (l *oneListener) Close() error   { close(l.done); return nil }
func (l *oneListener) Addr() net.Addr { return &net.UnixAddr{Net: "unix"} }

func TestAsksArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Caller
		start := time.Now()
		for range asksBurst + 100 {
			if err := c.Paced(t.Context(), clock.Clock{}); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(start); took != 100*askWait {
			t.Errorf("%d asks in a row took %s", asksBurst+100, took)
		}
	})
}
