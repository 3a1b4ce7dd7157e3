package api

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
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

// A daemon that is stopped is named within 5 s, and given up later. One that works for long is not.
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
				if len(told) != is.told || len(told) > 0 && told[0] > 5*time.Second {
					t.Errorf("it was named after %v, want %d times", told, is.told)
				}
			})
		})
	}
}
