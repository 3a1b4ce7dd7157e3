package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"testing"

	"pando.run/pando"
	"pando.run/pando/api"
	"pando.run/pando/driver/clock"
)

// at serves a handler on a unix socket until stop is called.
func at(t testing.TB, socket string, h http.Handler) (stop func()) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: h}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	stop = func() { s.Close(); <-done }
	t.Cleanup(func() { s.Close() })
	return stop
}

// lossy executes requests. For the first few changes it breaks the connection instead of answering.
func lossy(next http.Handler, losses int64) http.Handler {
	var n atomic.Int64
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet || n.Add(1) > losses {
			next.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(discard{http.Header{}}, r)
		panic(http.ErrAbortHandler)
	})
}

type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(b []byte) (int, error) { return len(b), nil }
func (d discard) WriteHeader(int)             {}

func TestAClientWhoseAnswerIsLostAsksAgainAndItIsDoneOnce(t *testing.T) {
	h := open(t)
	socket := filepath.Join(t.TempDir(), "api.sock")
	at(t, socket, lossy(h.http.Config.Handler, 2))
	c := api.NewClient(socket, clock.Clock{})
	var s pando.Spec
	if err := json.Unmarshal([]byte(web), &s); err != nil {
		t.Fatal(err)
	}
	st, err := c.Deploy(t.Context(), s)
	if err != nil || st.Latest != 1 {
		t.Fatalf("revision %d: %v", st.Latest, err)
	}
	why, err := c.Why(t.Context(), s.Key(), 0)
	if err != nil {
		t.Fatal(err)
	}
	deploys := 0
	for _, b := range why {
		if b.Decision != nil &&
			(b.Decision.Kind == pando.DecidedDeploy || b.Decision.Kind == pando.DecidedNothing) {
			deploys++
		}
	}
	if deploys != 1 {
		t.Errorf("%d decisions for one deploy that was sent three times", deploys)
	}
}

func TestAClientGivesUpOnAConnectionThatKeepsBreaking(t *testing.T) {
	h := open(t)
	socket := filepath.Join(t.TempDir(), "api.sock")
	at(t, socket, lossy(h.http.Config.Handler, 1000))
	_, err := api.NewClient(socket, clock.Clock{}).Pin(t.Context(), pando.DefaultService("web"), 2, 0)
	if !errors.Is(err, pando.ErrUnavailable) {
		t.Errorf("%v", err)
	}
}

func TestErrorsKeepTheirSentinelOverTheWire(t *testing.T) {
	h := open(t)
	socket := filepath.Join(t.TempDir(), "api.sock")
	at(t, socket, h.http.Config.Handler)
	c, none := api.NewClient(socket, clock.Clock{}), pando.DefaultService("none")
	h.serving()
	for _, err := range []error{
		ignore(c.Service(t.Context(), none)), c.Remove(t.Context(), none, false),
		ignore(c.Why(t.Context(), none, 1)),
		ignore(c.Fits(t.Context(), none)),
		ignore(c.Logs(t.Context(), none, "", pando.LogQuery{Lines: 1}, false)),
		ignore(c.StateLog(t.Context(), none, 3)),
		ignore(c.Unpin(t.Context(), none)),
	} {
		if !errors.Is(err, pando.ErrNotFound) {
			t.Errorf("%v", err)
		}
	}
	err := ignore(c.Deploy(t.Context(),
		pando.Spec{Name: "w", Command: []string{"x"}, Restart: "maybe"}))
	if !errors.Is(err, pando.ErrInvalid) {
		t.Errorf("%v", err)
	}
	h.registry.Fail(pando.ErrStoreFull)
	if err := ignore(c.Pin(t.Context(),
		pando.DefaultService("web"), 2, 0)); !errors.Is(err, pando.ErrStoreFull) {
		t.Errorf("%v", err)
	}
	h.registry.Fail(nil)
	absent := api.NewClient(filepath.Join(t.TempDir(), "none"), clock.Clock{})
	if err := ignore(absent.Hosts(t.Context())); !errors.Is(err, pando.ErrUnavailable) {
		t.Errorf("%v", err)
	}
}

func ignore[T any](_ T, err error) error { return err }

func TestAWatchOutlivesItsServer(t *testing.T) {
	h := open(t)
	h.serving()
	socket := filepath.Join(t.TempDir(), "api.sock")
	stop := at(t, socket, h.http.Config.Handler)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	pins := make(chan int, 100)
	listens := make(chan pando.StoreRevision, 10)
	ended := make(chan error, 1)
	go func() {
		ended <- api.NewClient(socket, clock.Clock{}).Watch(ctx, 0, func(e api.Event) {
			var s pando.Service
			if e.Kind == pando.KindBookmark {
				listens <- e.Revision
			}
			if e.Kind == pando.KindService && json.Unmarshal(e.Value, &s) == nil && s.Pin != nil {
				pins <- s.Pin.Instances
			}
		})
	}()
	await := func(n int) {
		t.Helper()
		for {
			select {
			case got := <-pins:
				if got == n {
					return
				}
			case err := <-ended:
				t.Fatalf("the watch ended: %v", err)
			}
		}
	}
	if from := <-listens; from == 0 {
		t.Error("the watch does not name the revision that it starts from")
	}
	for n := 2; n <= 3; n++ { // the first time before anything has changed
		stop()
		// The socket is closed meanwhile.
		h.ask("POST", "/v1/services/web/pin", fmt.Sprintf(`{"instances": %d}`, n))
		stop = at(t, socket, h.http.Config.Handler)
		await(n)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
