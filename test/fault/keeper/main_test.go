package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// host serves an instance's API on a socket, records the requests and answers by the function.
func host(t *testing.T, answer func(request string) int) *[]string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "self.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		request := strings.TrimSpace(fmt.Sprintf("%s %s %s", r.Method, r.URL.Path, body))
		got = append(got, request)
		w.WriteHeader(answer(request))
		fmt.Fprint(w, "answered")
	})}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	t.Setenv("PANDO_SOCKET", path)
	own.CloseIdleConnections() // those of an earlier test
	return &got
}

func fine(string) int { return http.StatusOK }

func TestALineIsWrittenThenCommitted(t *testing.T) {
	got := host(t, fine)
	if err := keep("line 1"); err != nil {
		t.Fatal(err)
	}
	want := []string{"PATCH /v1/self/state/log line 1", "POST /v1/self/state/commit"}
	if !slices.Equal(*got, want) {
		t.Errorf("the host received %q, want %q", *got, want)
	}
}

// A line counts as acknowledged only after its commit: the fault tests look for each of them.
func TestALineWithoutACommitIsNotAcknowledged(t *testing.T) {
	for _, broken := range []string{"PATCH", "POST"} {
		got := host(t, func(request string) int {
			if strings.HasPrefix(request, broken) {
				return http.StatusConflict
			}
			return http.StatusOK
		})
		err := keep("line 1")
		if err == nil || !strings.Contains(err.Error(), "409") {
			t.Errorf("%s fails: %v, want the status", broken, err)
		}
		if broken == "PATCH" && len(*got) != 1 {
			t.Errorf("a line that was not written was committed: %q", *got)
		}
	}
}

func TestAHostThatIsAwayIsAnError(t *testing.T) {
	t.Setenv("PANDO_SOCKET", filepath.Join(t.TempDir(), "none.sock"))
	own.CloseIdleConnections()
	if err := keep("line 1"); err == nil {
		t.Error("a line was kept without a host")
	}
	if _, err := ask("BAD METHOD", "/", ""); err == nil {
		t.Error("a request with an invalid method was sent")
	}
}

func TestAnswersCarryTheErrorOfTheHost(t *testing.T) {
	for _, c := range []struct {
		err    error
		status int
		body   string
	}{
		{nil, http.StatusOK, "text"},
		{errors.New("the host is away"), http.StatusBadGateway, "the host is away\n"},
	} {
		w := httptest.NewRecorder()
		answer(w, "text", c.err)
		if w.Code != c.status || w.Body.String() != c.body {
			t.Errorf("%v: %d %q, want %d %q", c.err, w.Code, w.Body, c.status, c.body)
		}
	}
}
