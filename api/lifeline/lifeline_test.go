package lifeline

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pando.run/pando"
)

// bubble is the clock of a bubble.
type bubble struct{}

func (bubble) Now() time.Time { return time.Now() }
func (bubble) After(d time.Duration) (<-chan time.Time, func()) {
	t := time.NewTimer(d)
	return t.C, func() { t.Stop() }
}

// A session that is not to be kept ends with the silence of its daemon, also while it is open. The
// silence is reported within a second before the answer.
func TestASilentDaemonEndsARequest(t *testing.T) {
	for name, answers := range map[string]bool{"without an answer": false, "in an open session": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex // the client dials and reports from goroutines of its own
				var ends []net.Conn
				c := &http.Client{Transport: &http.Transport{
					DialContext: func(context.Context, string, string) (net.Conn, error) {
						ours, theirs := net.Pipe()
						mu.Lock()
						defer mu.Unlock()
						first := len(ends) == 0
						ends = append(ends, theirs)
						go func() {
							if answers && first {
								_, _ = theirs.Read(make([]byte, 4096))
								_, _ = io.WriteString(theirs, "HTTP/1.1 101 Switching Protocols\r\n"+
									"Connection: Upgrade\r\nUpgrade: test\r\n\r\n")
							}
							_, _ = io.Copy(io.Discard, theirs) // its kernel takes all that comes
						}()
						return ours, nil
					}}}
				begin := time.Now()
				var told []time.Duration
				q := Request{Client: c, Clock: bubble{}, Sentinel: pando.ErrUnreachable,
					Who: func() string { return "the agent of h" },
					Waits: func(string) {
						mu.Lock()
						defer mu.Unlock()
						told = append(told, time.Since(begin))
					}}
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://h/x", nil)
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set("Connection", "Upgrade")
				r.Header.Set("Upgrade", "test")
				resp, err := q.Do(r)
				if err == nil {
					_, err = io.ReadAll(resp.Body)
					resp.Body.Close()
				}
				if !errors.Is(err, pando.ErrUnreachable) || !errors.As(err, new(Silence)) {
					t.Errorf("it ended with %v", err)
				}
				if took := time.Since(begin); took < SilentMax || took > 2*SilentMax {
					t.Errorf("it ended after %s", took)
				}
				mu.Lock()
				defer mu.Unlock()
				if len(told) != 1 || !answers && told[0] > time.Second {
					t.Errorf("it was reported after %v", told)
				}
				for _, e := range ends {
					e.Close()
				}
				c.CloseIdleConnections()
			})
		})
	}
}
