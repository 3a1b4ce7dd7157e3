package peer

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"

	"pando.run/pando"
	"pando.run/pando/driver/clock"
)

// echoes is an agent that returns each state request as its answer, once held returns.
func echoes(t *testing.T, socket string, held func(*http.Request)) (end func()) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		held(r)
		if err == nil {
			_, _ = w.Write(append([]byte(r.URL.Path+" "), b...))
		}
	})}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	return func() { s.Close(); <-ended }
}

func TestAStateIsReadWhileItsAgentStartsAnew(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent")
	c := New(Reach{Clock: clock.Clock{}})
	defer c.Close()
	states := c.State(pando.Host{Name: "h1", Endpoint: "unix://" + socket})
	question := bytes.Repeat([]byte("have "), 10_000)
	read := func() {
		t.Helper()
		w := httptest.NewRecorder()
		states.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost,
			"/web.git/git-upload-pack", bytes.NewReader(question)))
		want := "/peer/state/web.git/git-upload-pack " + string(question)
		if w.Code != http.StatusOK || w.Body.String() != want {
			t.Fatalf("status %d: %.200s", w.Code, w.Body)
		}
	}
	at := func(held func(*http.Request)) func() { return echoes(t, socket, held) }
	atOnce := func(*http.Request) {}
	end := at(atOnce)
	for range 10 { // over a kept connection that the new agent does not have
		read()
		end()
		end = at(atOnce)
		read()
	}
	end()
	asked := make(chan struct{}, 1)
	end = at(func(r *http.Request) { asked <- struct{}{}; <-r.Context().Done() })
	back := make(chan func(), 1)
	go func() { // the agent ends before its answer, and a new one starts
		<-asked
		end()
		back <- at(atOnce)
	}()
	read()
	(<-back)()
}

func TestAQuestionAboutAStateIsBounded(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent")
	defer echoes(t, socket, func(*http.Request) {})()
	c := New(Reach{Clock: clock.Clock{}})
	defer c.Close()
	w := httptest.NewRecorder()
	c.State(pando.Host{Name: "h1", Endpoint: "unix://" + socket}).ServeHTTP(w,
		httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/web.git/git-upload-pack",
			bytes.NewReader(make([]byte, stateAskMax+1))))
	if w.Code != http.StatusRequestEntityTooLarge {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
}
