package main

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// host serves an instance's API on a socket.
func host(t *testing.T, serve http.HandlerFunc) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "self.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: serve}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	t.Setenv("PANDO_SOCKET", path)
	self.CloseIdleConnections()
}

func TestAnAskIsMeasured(t *testing.T) {
	var path string
	host(t, func(w http.ResponseWriter, r *http.Request) {
		path = r.Method + " " + r.URL.Path
		w.WriteHeader(http.StatusAccepted)
	})
	before := time.Now()
	began, took, err := ask("replicate")
	if err != nil || path != "POST /v1/self/replicate" {
		t.Fatalf("the host received %q, %v", path, err)
	}
	if began.Before(before) || took <= 0 || began.Add(took).After(time.Now()) {
		t.Errorf("it began %s after the test and took %s", began.Sub(before), took)
	}
}

func TestARefusedAskIsAnErrorWithTheReason(t *testing.T) {
	host(t, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "8 of max 8 instances", http.StatusConflict)
	})
	if _, _, err := ask("replicate"); err == nil || !strings.Contains(err.Error(), "8 of max 8") {
		t.Errorf("got %v, want the reason", err)
	}
	t.Setenv("PANDO_SOCKET", filepath.Join(t.TempDir(), "none.sock"))
	self.CloseIdleConnections()
	if _, took, err := ask("halt"); err == nil || took != 0 {
		t.Errorf("without a host: %s, %v", took, err)
	}
}

func TestAReplyHasTheTimesOfTheAsk(t *testing.T) {
	w, at := httptest.NewRecorder(), time.Unix(3, 7)
	reply(w, at, 5*time.Microsecond, nil)
	var got map[string]int64
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got["began"] != 3_000_000_007 || got["took"] != 5000 || !w.Flushed {
		t.Errorf("got %v, flushed %v", got, w.Flushed)
	}
	w = httptest.NewRecorder()
	reply(w, at, 0, errors.New("refused"))
	if w.Code != http.StatusConflict || w.Body.String() != "refused\n" {
		t.Errorf("a refusal: %d %q", w.Code, w.Body)
	}
}
