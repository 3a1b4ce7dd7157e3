package api

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
)

// ticking is the clock of the process, which is virtual in a bubble.
type ticking struct{}

func (ticking) Now() time.Time { return time.Now() }
func (ticking) After(d time.Duration) (<-chan time.Time, func()) {
	t := time.NewTimer(d)
	return t.C, func() { t.Stop() }
}

// pipes is a listener of connections within this process, so that a test runs in virtual time.
type pipes struct {
	waiting chan net.Conn
	done    chan struct{}
}

func (p pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.waiting:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}
func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// dial connects to the listener. A stopped daemon accepts too: its kernel does that.
func (p pipes) dial(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	go func() {
		select {
		case p.waiting <- theirs:
		case <-p.done:
			theirs.Close()
		}
	}()
	return ours, nil
}

// A daemon that is stopped is named within a second, and given up later. One that works for long is not.
func TestADaemonThatGivesNoSignOfLifeIsNamed(t *testing.T) {
	for name, is := range map[string]struct {
		method      string
		runs        time.Duration // from then on the daemon runs; before, it is stopped
		work        time.Duration // of a request
		told        int
		fails       bool
		says        string
		most, least time.Duration
	}{
		"a stopped daemon is asked":     {"GET", time.Hour, 0, 1, true, "gave no sign of life", 14 * time.Second, 5 * time.Second},
		"a stopped daemon is to change": {"POST", time.Hour, 0, 1, true, "may take effect", 14 * time.Second, 5 * time.Second},
		"it runs on":                    {"GET", 6 * time.Second, 0, 1, false, "", 7 * time.Second, 6 * time.Second},
		"it works for long":             {"GET", 0, time.Minute, 0, false, "", time.Minute, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := pipes{make(chan net.Conn), make(chan struct{})}
				s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					time.Sleep(is.work)
					_, _ = io.WriteString(w, "[]")
				})}
				begins := time.AfterFunc(is.runs, func() { _ = s.Serve(l) })
				c := NewRemoteClient("https://there", "", ticking{}, l.dial)
				defer func() {
					begins.Stop()
					close(l.done)
					s.Close()
					c.http.Transport.(bearing).next.(*http.Transport).CloseIdleConnections()
				}()
				var told []time.Duration
				begin := time.Now()
				c.Waits = func(what string) {
					if told = append(told, time.Since(begin)); !strings.Contains(what, "process 42") {
						t.Errorf("it waits for %q", what)
					}
				}
				c.Daemon = func() string { return "process 42 (stopped)" }
				r, err := c.send(t.Context(), is.method, "/v1/services", nil, nil, nil)
				if err == nil {
					r.Close()
				}
				took := time.Since(begin)
				if (err != nil) != is.fails || is.fails && !(errors.Is(err, pando.ErrUnavailable) &&
					strings.Contains(err.Error(), "process 42 (stopped)") && strings.Contains(err.Error(), is.says)) {
					t.Errorf("the answer: %v", err)
				}
				if took > is.most || took < is.least {
					t.Errorf("it took %s, want %s to %s", took, is.least, is.most)
				}
				if len(told) != is.told || len(told) > 0 && told[0] > time.Second {
					t.Errorf("it was named after %v, want %d times", told, is.told)
				}
			})
		})
	}
}

// stoppable is a connection to a daemon that may be stopped: nothing arrives then.
type stoppable struct {
	net.Conn
	from, to time.Time // of the stop
	closed   chan struct{}
	once     sync.Once
}

func (s *stoppable) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	if now := time.Now(); !now.Before(s.from) && now.Before(s.to) {
		select {
		case <-time.After(s.to.Sub(now)):
		case <-s.closed:
			return 0, net.ErrClosed
		}
	}
	return n, err
}

func (s *stoppable) Close() error {
	s.once.Do(func() { close(s.closed) })
	return s.Conn.Close()
}

// An open stream of a daemon that is stopped is named within 5 s and ends later. A session is named and
// goes on. A silent stream of a daemon that runs is neither.
func TestAnOpenStreamOfASilentDaemonIsNamedAndEnds(t *testing.T) {
	const lasts = 2 * time.Minute // of the stream, then it ends
	for name, is := range map[string]struct {
		upgrade   string
		stopped   time.Duration
		told      int
		ends      bool
		endsUntil time.Duration // after the stop
	}{
		"a silent stream":             {"", 0, 0, false, lasts},
		"a stopped daemon":            {"", time.Hour, 1, true, 15 * time.Second},
		"a daemon that stops for 5 s": {"", 5 * time.Second, 1, false, lasts},
		"a session":                   {"pando-session", time.Minute, 1, false, lasts},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := pipes{make(chan net.Conn), make(chan struct{})}
				begin := time.Now()
				stop := begin.Add(20 * time.Second)
				s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.WriteString(w, "first\n")
					_ = http.NewResponseController(w).Flush()
					select {
					case <-time.After(lasts):
					case <-r.Context().Done():
					}
				})}
				go func() { _ = s.Serve(l) }()
				c := NewRemoteClient("https://there", "", ticking{},
					func(ctx context.Context, network, address string) (net.Conn, error) {
						conn, err := l.dial(ctx, network, address)
						return &stoppable{Conn: conn, from: stop, to: stop.Add(is.stopped),
							closed: make(chan struct{})}, err
					})
				var told []time.Duration
				c.Waits = func(string) { told = append(told, time.Since(stop)) }
				defer func() {
					close(l.done)
					s.Close()
					c.http.Transport.(bearing).next.(*http.Transport).CloseIdleConnections()
				}()
				r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://pando/v1/watch", nil)
				if err != nil {
					t.Fatal(err)
				}
				if is.upgrade != "" {
					r.Header.Set("Upgrade", is.upgrade)
				}
				resp, err := c.do(r)
				if err != nil {
					t.Fatal(err)
				}
				text, err := io.ReadAll(resp.Body)
				took := time.Since(stop)
				resp.Body.Close()
				if string(text) != "first\n" || errors.Is(err, pando.ErrUnavailable) != is.ends ||
					is.ends == (err == nil) || took > is.endsUntil {
					t.Errorf("%q after %s, then %v", text, took, err)
				}
				if len(told) != is.told || is.told > 0 && told[0] > 5*time.Second {
					t.Errorf("it was named %v after the stop, want %d times", told, is.told)
				}
			})
		})
	}
}
