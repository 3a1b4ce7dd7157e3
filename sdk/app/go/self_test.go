package pando

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"
)

// host answers on a unix socket like an agent. The program under test is the client.
func host(t *testing.T, routes map[string]http.HandlerFunc) *Self {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "pando.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	for pattern, h := range routes {
		mux.HandleFunc(pattern, h)
	}
	s := &http.Server{Handler: mux}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	t.Setenv("PANDO_SOCKET", socket)
	t.Setenv("PANDO_INSTANCE", "website-1")
	t.Setenv("PANDO_ROLE", "first")
	self, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	return self
}

func TestOutsideOfPandoTheErrorSaysWhatToDo(t *testing.T) {
	t.Setenv("PANDO_SOCKET", "")
	if _, err := Open(); err == nil {
		t.Fatal("a program that Pando did not start has a self")
	}
}

func TestARefusalIsAnErrorWithItsReason(t *testing.T) {
	self := host(t, map[string]http.HandlerFunc{
		"POST /v1/self/replicate": func(w http.ResponseWriter, r *http.Request) {
			var a Ask
			err := json.NewDecoder(r.Body).Decode(&a)
			if err != nil || a.Reason != "busy" || a.Inputs["rate"] != 700 {
				t.Errorf("the ask arrived as %+v, %v", a, err)
			}
			w.WriteHeader(http.StatusConflict)
			fmt.Fprint(w, `{"code": "refused", "detail": "replicate refused: 8 of max 8 instances"}`)
		}})
	_, err := self.Replicate(t.Context(), Ask{Reason: "busy", Inputs: map[string]float64{"rate": 700}})
	if !errors.Is(err, ErrRefused) || err.Error() != "replicate refused: 8 of max 8 instances" {
		t.Fatalf("got %v", err)
	}
}

func TestAnAgentThatIsAwayIsNotARefusal(t *testing.T) {
	t.Setenv("PANDO_SOCKET", filepath.Join(t.TempDir(), "nobody"))
	self, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	if err := self.Ready(t.Context()); !errors.Is(err, ErrAway) {
		t.Fatalf("got %v", err)
	}
}

func TestStateSpeaksTheTypesOfItsPaths(t *testing.T) {
	got := map[string]string{}
	self := host(t, map[string]http.HandlerFunc{
		"PATCH /v1/self/state/{path...}": func(_ http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			got[r.PathValue("path")] = string(b)
		},
		"GET /v1/self/state/{path...}": func(w http.ResponseWriter, r *http.Request) {
			if r.PathValue("path") != "hits" {
				w.WriteHeader(http.StatusNotFound)
				fmt.Fprint(w, `{"code": "not_found", "detail": "no such path"}`)
				return
			}
			fmt.Fprint(w, "42\n")
		},
	})
	s, ctx := self.State(), t.Context()
	for _, err := range []error{s.Add(ctx, "hits", -3), s.Append(ctx, "log", "a", "b"),
		s.Include(ctx, "users", "x", "y"), s.Exclude(ctx, "gone", "z")} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{
		"hits": "-3", "log": "a\nb\n", "users": "+x\n+y", "gone": "-z",
	} {
		if got[path] != want {
			t.Errorf("%s was sent %q, want %q", path, got[path], want)
		}
	}
	if n, err := s.Counter(ctx, "hits"); n != 42 || err != nil {
		t.Errorf("the counter is %d, %v", n, err)
	}
	if n, err := s.Counter(ctx, "nothing"); n != 0 || err != nil {
		t.Errorf("an unused counter is %d, %v", n, err)
	}
}

func TestAChangeGoesInOneRequest(t *testing.T) {
	self := host(t, map[string]http.HandlerFunc{
		"POST /v1/self/state/commit": func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			if want := `{"put":{"at":"3"},"patch":{"hits":"2"},"delete":["old"]}`; string(b) != want {
				t.Errorf("the change arrived as %s, want %s", b, want)
			}
			fmt.Fprint(w, `{"commit": "00"}`)
		}})
	change := Change{
		Put: map[string]string{"at": "3"}, Patch: map[string]string{"hits": "2"}, Delete: []string{"old"},
	}
	if err := self.State().CommitChange(t.Context(), change); err != nil {
		t.Fatal(err)
	}
}

func TestEventsGoOnWhereTheyWereCutOff(t *testing.T) {
	var after []string
	self := host(t, map[string]http.HandlerFunc{
		"GET /v1/self/events": func(w http.ResponseWriter, r *http.Request) {
			after = append(after, r.Header.Get("Last-Event-ID"))
			n := len(after)
			fmt.Fprintf(w, ": alive\n\nid: %d\nevent: peers\ndata: {\"id\": %d, \"kind\": \"peers\"}\n\n", n,
				n) // then the connection ends
		}})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	seen := uint64(0)
	for e := range self.Events(ctx) {
		if seen++; e.ID != seen || e.Kind != Peers {
			t.Fatalf("event %d came as %+v", seen, e)
		}
		if seen == 3 {
			break
		}
	}
	if fmt.Sprint(after) != "[ 1 2]" {
		t.Fatalf("it asked after %q", after)
	}
}

func TestWhatIsLostIsSaid(t *testing.T) {
	lose := func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusConflict)
		fmt.Fprint(w, `{"code": "lost", "detail": "write it again"}`)
	}
	self := host(t, map[string]http.HandlerFunc{"POST /v1/self/state/commit": lose})
	if err := self.State().Commit(t.Context(), ""); !errors.Is(err, ErrLost) ||
		err.Error() != "write it again" {
		t.Errorf("got %v, want ErrLost and the next step", err)
	}
}

// A stopped agent sends no line, not even a keep-alive. Events asks it again, and continues after the
// last event once it answers.
func TestEventsOutliveASilentAgent(t *testing.T) {
	defer func(d time.Duration) { silenceMax = d }(silenceMax)
	silenceMax = 50 * time.Millisecond
	asked := 0
	self := host(t, map[string]http.HandlerFunc{
		"GET /v1/self/events": func(w http.ResponseWriter, r *http.Request) {
			if asked++; asked < 3 {
				<-r.Context().Done()
				return
			}
			fmt.Fprint(w, "id: 7\ndata: {\"id\": 7, \"kind\": \"peers\"}\n\n")
		}})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for e := range self.Events(ctx) {
		if e.ID != 7 || asked != 3 {
			t.Errorf("%+v after %d requests", e, asked)
		}
		return
	}
	t.Errorf("no event after %d requests", asked)
}
