package peer

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"pando.run/pando"
	"pando.run/pando/api/problem"
)

// The asker tests for the same sentinel and reads the same text as on the answering host.
func TestEverySentinelSurvivesTheWayBetweenHosts(t *testing.T) {
	for _, k := range problem.Kinds {
		w := httptest.NewRecorder()
		Refuse(w, fmt.Errorf("drain web: %w: because", k.Err))
		back := readProblem(w.Result())
		if !errors.Is(back, k.Err) || back.Error() != "drain web: "+k.Err.Error()+": because" ||
			w.Code != k.Status {
			t.Errorf("%v becomes %v (status %d)", k.Err, back, w.Code)
		}
	}
}

// A host of a build before this one sends codes with hyphens, and expects them.
func TestCodesBetweenHostsHaveHyphens(t *testing.T) {
	w := httptest.NewRecorder()
	Refuse(w, fmt.Errorf("%w: 3 hosts", pando.ErrNoRoom))
	if body := w.Body.String(); !strings.Contains(body, `"code":"no-room"`) {
		t.Errorf("sent %s", body)
	}
}

func TestAnAnswerThatIsNoProblemIsNamedByItsStatus(t *testing.T) {
	for _, body := range []string{"", "<html>", strings.Repeat("x", problemBytes+10), "[]"} {
		err := readProblem(&http.Response{Status: "502 Bad Gateway",
			Body: io.NopCloser(strings.NewReader(body))})
		if err == nil || !strings.Contains(err.Error(), "502 Bad Gateway") {
			t.Errorf("%.20q: %v", body, err)
		}
	}
}

func TestAnEndpointLeadsToOneConnection(t *testing.T) {
	c := New(Reach{Own: "h1", Socket: "/run/pando/agent.sock"})
	defer c.Close()
	for _, h := range []pando.Host{
		{Name: "h1", Endpoint: "unix:///run/pando/other.sock"},
		{Name: "h2", Endpoint: "http://10.0.0.2:7401"},
		{Name: "h1", Endpoint: "https://10.0.0.1:7401"}, // its own host: by the socket
	} {
		u, err := c.base(h)
		if err != nil {
			t.Errorf("%s: %v", h.Endpoint, err)
			continue
		}
		path, unix := strings.CutSuffix(u.Host, unixSuffix)
		if !unix {
			continue
		}
		want := map[bool]string{true: "/run/pando/other.sock",
			false: "/run/pando/agent.sock"}[strings.HasPrefix(h.Endpoint, "unix")]
		if got, err := decodePath(path); err != nil || got != want {
			t.Errorf("%s leads to %q (%v), want %q", h.Endpoint, got, err, want)
		}
	}
	for _, endpoint := range []string{"", "unix://", "https://10.0.0.2:7401", "ftp://10.0.0.2",
		"http://", ":"} {
		u, err := c.base(pando.Host{Name: "h2", Endpoint: endpoint})
		if !errors.Is(err, pando.ErrInvalid) {
			t.Errorf("%q leads to %v (%v)", endpoint, u, err)
		}
	}
}

// join sends a request for membership to a handler.
func join(h http.Handler, auth, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, JoinPath, strings.NewReader(body))
	r.RemoteAddr = "[::ffff:192.0.2.7]:4000"
	if auth != "" {
		r.Header.Set("Authorization", auth)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// The body of a stranger is not read before its token is good.
func TestAStrangersRequestIsNotRead(t *testing.T) {
	h := JoinHandler(func(token string) error {
		if token != "good" {
			return fmt.Errorf("%w: the token is bad", pando.ErrForbidden)
		}
		return nil
	}, func(context.Context, Joining, *x509.Certificate) (Joined, error) {
		return Joined{Slot: 3},
			nil
	})
	r := httptest.NewRequest(http.MethodPost, JoinPath, unread{t})
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != http.StatusForbidden {
		t.Errorf("without a token: %d", w.Code)
	}
	if got := join(h, bearer+"good", `{"host": "h2"}`); got.Code != http.StatusOK ||
		!strings.Contains(got.Body.String(), `"slot":3`) {
		t.Errorf("with a token: %d %s", got.Code, got.Body)
	}
	if got := join(h, bearer+"good", "noise"); got.Code != http.StatusBadRequest {
		t.Errorf("noise: %d %s", got.Code, got.Body)
	}
}

// unread fails the test when it is read.
type unread struct{ t *testing.T }

func (u unread) Read([]byte) (int, error) {
	u.t.Error("the body of a stranger is read")
	return 0, io.EOF
}

func TestTheServerSeesWhereARequestToJoinComesFrom(t *testing.T) {
	var seen Joining
	h := JoinHandler(func(string) error { return nil },
		func(_ context.Context, j Joining, known *x509.Certificate) (Joined, error) {
			if known != nil {
				t.Error("a stranger has a certificate")
			}
			seen = j
			return Joined{}, nil
		})
	text, err := json.Marshal(Joining{Token: "secret", Host: "h2", Address: "192.0.2.8"})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "secret") {
		t.Errorf("the token is in the body: %s", text)
	}
	join(h, bearer+"secret", string(text))
	if seen.Token != "secret" || seen.Host != "h2" || seen.From.String() != "192.0.2.7" {
		t.Errorf("%+v", seen)
	}
}

func TestAPeerRefusesBadArguments(t *testing.T) {
	h := Handler(&host{})
	for path, want := range map[string]int{
		"/peer/applied?tenant=default&service=web&at=7":                                       200,
		"/peer/applied?tenant=default&service=web&at=x":                                       400,
		"/peer/applied?tenant=default&service=Web&at=7":                                       400,
		"/peer/applied?service=web&at=7":                                                      400,
		"/peer/statelog?tenant=default&service=web&max=":                                      400,
		"/peer/logs?tenant=default&service=web&instance=web-1&lines=ten&follow=false&since=0": 400,
		"/peer/logs?instance=web-1&lines=1&follow=false&since=0":                              400,
		"/peer/none": 404,
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, http.NoBody))
		if w.Code != want {
			t.Errorf("%s: %d, want %d: %s", path, w.Code, want, w.Body)
		}
	}
}
