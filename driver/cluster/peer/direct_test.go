package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"pando.run/pando"
)

// restartable serves asks on a unix socket until it is closed.
func restartable(t *testing.T, path string, h http.Handler) *http.Server {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	go s.Serve(l)
	return s
}

func TestAsksOutliveARestartOfTheServer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "api.sock")
	c := New(Reach{})
	defer c.Close()
	control := Control{Client: c, Server: pando.Host{Name: "h1", Endpoint: "unix://" + path}}
	for range 3 {
		s := restartable(t, path, ControlHandler(decider{}))
		var asks sync.WaitGroup
		for n := range 8 {
			asks.Go(func() {
				for m := range 20 {
					ask := pando.Intent{ID: pando.IntentID(fmt.Sprint(n, "-", m)),
						Service: pando.DefaultService("web"), Verb: pando.VerbReplicate}
					got, err := control.Answer(t.Context(), pando.Fence{Key: "epoch"}, ask, func() {})
					if err != nil || len(got) != 1 || got[0].Key != ask.Key() {
						t.Errorf("%s: %+v, %v", ask.ID, got, err)
					}
				}
			})
		}
		asks.Wait()
		s.Close()
	}
}

func TestAnAskThatIsGivenUpEndsAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "api.sock")
	heard := make(chan struct{}, 1)
	s := restartable(t, path, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		heard <- struct{}{}
		<-t.Context().Done()
	}))
	defer s.Close()
	c := New(Reach{})
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-heard
		cancel()
	}()
	control := Control{Client: c, Server: pando.Host{Name: "h1", Endpoint: "unix://" + path}}
	_, err := control.Answer(ctx, pando.Fence{}, pando.Intent{ID: "1"}, func() {})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("an ask that was given up: %v", err)
	}
}

func BenchmarkAsk(b *testing.B) {
	path := filepath.Join(b.TempDir(), "api.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		b.Fatal(err)
	}
	s := &http.Server{Handler: ControlHandler(decider{}), ReadHeaderTimeout: time.Minute}
	defer s.Close()
	go s.Serve(l)
	c := New(Reach{})
	defer c.Close()
	for name, by := range map[string]*http.Client{"direct": c.direct, "transport": c.http} {
		b.Run(name, func(b *testing.B) {
			d := *c
			d.direct = by
			control := Control{Client: &d, Server: pando.Host{Name: "h1", Endpoint: "unix://" + path}}
			for b.Loop() {
				if _, err := control.Answer(b.Context(), pando.Fence{Key: "epoch"},
					pando.Intent{ID: "1", Verb: pando.VerbReplicate}, func() {}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
