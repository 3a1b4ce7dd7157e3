package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
)

func TestWorkIsMeasured(t *testing.T) {
	if n := speed(); n < 10 || n > 1e6 {
		t.Errorf("%g hashes in a millisecond", n)
	}
}

func TestNumbersOfARequestAreBounded(t *testing.T) {
	for text, want := range map[string]float64{
		"2.5": 2.5, "": 0, "-1": 0, "a lot": 0, "1e9": 10_000, "NaN": 0,
	} {
		if got := number(text); got != want {
			t.Errorf("%q is %g, want %g", text, got, want)
		}
	}
}

func TestAnAnswerHasTheNameOfTheInstance(t *testing.T) {
	h := handler(0, "web-1")
	for _, path := range []string{"/", "/?ms=0.1", "/live"} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if w.Code != http.StatusOK || strings.TrimSpace(w.Body.String()) != "web-1" {
			t.Errorf("%s gives %d %q", path, w.Code, w.Body)
		}
	}
}

func TestASocketOfTheStarterIsNeeded(t *testing.T) {
	if _, err := os.Stat("/proc/self/fd/3"); err != nil {
		t.Skip("descriptor 3 is free")
	}
	t.Setenv("LISTEN_FDS", "1")
	if l, err := listen(); err == nil {
		l.Close()
		t.Error("a descriptor without a socket serves")
	}
}

func TestAQueueServesOneRequestAtATime(t *testing.T) {
	in, out := make(chan struct{}), make(chan struct{})
	h := oneByOne(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		in <- struct{}{}
		<-out
	}))
	request := func(ctx context.Context) chan struct{} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			h.ServeHTTP(httptest.NewRecorder(),
				httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil))
		}()
		return done
	}
	first := request(t.Context())
	<-in
	ctx, leave := context.WithCancel(t.Context())
	second := request(ctx)
	leave()
	<-second // without its turn
	out <- struct{}{}
	<-first
}
