package main

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestNumbersOfARequest(t *testing.T) {
	for query, want := range map[string]int{
		"": 0, "code=3": 3, "code=-1": -1, "code=x": 0, "other=3": 0, "code=": 0,
	} {
		if got := number(httptest.NewRequest("GET", "/exit?"+query, nil), "code"); got != want {
			t.Errorf("%q: %d, want %d", query, got, want)
		}
	}
}

func TestMemoryThatWasTakenIsKept(t *testing.T) {
	eaten = nil
	defer func() { eaten = nil }()
	for _, c := range []struct{ query, want string }{{"?mb=2", "2\n"}, {"?mb=1", "3\n"}, {"", "3\n"}} {
		w := httptest.NewRecorder()
		eat(w, httptest.NewRequest("GET", "/eat"+c.query, nil))
		if w.Body.String() != c.want {
			t.Errorf("%s: answered %q, want %q", c.query, w.Body, c.want)
		}
	}
	if last := eaten[2]; len(last) != 1<<20 || last[255] != 255 {
		t.Error("the memory is not touched")
	}
}

func TestAPageOfAnotherServerIsPassedOn(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Write([]byte("a page"))
	}))
	w := httptest.NewRecorder()
	pass(w, t.Context(), other.URL)
	if w.Body.String() != "a page" {
		t.Errorf("got %q", w.Body)
	}
	other.Close()
	for _, url := range []string{other.URL, "http://[::1"} {
		w = httptest.NewRecorder()
		if pass(w, t.Context(), url); w.Code != http.StatusBadGateway || w.Body.Len() == 0 {
			t.Errorf("%s: %d %q, want 502 with the reason", url, w.Code, w.Body)
		}
	}
}

func TestACallOfTheOwnAPIKeepsItsStatus(t *testing.T) {
	path := filepath.Join(t.TempDir(), "self.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, r.Method+" "+r.URL.Path, http.StatusConflict)
	})}
	go server.Serve(l)
	defer server.Close()
	t.Setenv("PANDO_SOCKET", path)
	w := httptest.NewRecorder()
	self(w, t.Context(), "/v1/self/halt", "{}")
	if w.Code != http.StatusConflict || w.Body.String() != "POST /v1/self/halt\n" {
		t.Errorf("got %d %q", w.Code, w.Body)
	}
	t.Setenv("PANDO_SOCKET", path+".none")
	w = httptest.NewRecorder()
	if self(w, t.Context(), "/", ""); w.Code != http.StatusBadGateway {
		t.Errorf("without a host: %d %q", w.Code, w.Body)
	}
}

// A test that loses its first datagrams still gets an answer.
func TestALostDatagramIsSentAgain(t *testing.T) {
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	received := make(chan string, 1)
	go func() {
		b := make([]byte, 100)
		for n := 0; ; n++ {
			size, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			if n > 0 { // the first one is lost
				received <- string(b[:size])
				c.WriteTo([]byte("answer"), from)
				return
			}
		}
	}()
	if err := datagram(c.LocalAddr().String(), "hello"); err != nil {
		t.Fatal(err)
	}
	if got := <-received; got != "hello" {
		t.Errorf("the server received %q", got)
	}
}

// A connection that breaks under a held request is an error: tests count on that.
func TestABrokenConnectionIsAnError(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		b := make([]byte, 4096)
		c.Read(b)
		c.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"))
		c.Read(b)
		c.Close()
	}()
	err = hold(l.Addr().String())
	if err == nil || !strings.Contains(err.Error(), "broken at") {
		t.Errorf("got %v, want the number of the request", err)
	}
	l.Close()
	if err := hold(l.Addr().String()); !errors.As(err, new(*net.OpError)) {
		t.Errorf("no server: %v", err)
	}
}

// A program is ready when it listens by TCP. A datagram may be waiting then.
func TestItListensByUDPFirst(t *testing.T) {
	if c, err := net.ListenPacket("udp", ":7007"); err == nil { // or another program has the port
		defer c.Close()
	}
	ended := make(chan error, 1)
	go func() { ended <- serve() }()
	select {
	case err := <-ended:
		if !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("without its UDP port it ends with %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it listens by TCP and not by UDP")
	}
}

func TestARegistryServesWhatItsFolderHas(t *testing.T) {
	dir := t.TempDir()
	at := filepath.Join(dir, "v2", "a", "manifests")
	if err := os.MkdirAll(at, 0o755); err != nil {
		t.Fatal(err)
	}
	const manifest = `{"mediaType": "application/x"}`
	if err := os.WriteFile(filepath.Join(at, "latest"), []byte(manifest), 0o644); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{"/v2/": 200, "/v2/a/manifests/latest": 200,
		"/v2/a/manifests/other": 404, "/v2/a/blobs/sha256:0": 404} {
		w := httptest.NewRecorder()
		images(dir).ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		if w.Code != want || path == "/v2/a/manifests/latest" && (w.Body.String() != manifest ||
			w.Header().Get("Content-Type") != "application/x") {
			t.Errorf("%s: %d %v %q", path, w.Code, w.Header(), w.Body)
		}
	}
}
