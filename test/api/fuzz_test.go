package api

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"pando.run/pando/api"
)

// through sends one request through a handler. Any request must get a good answer or a problem,
// never a server error.
func through(t *testing.T, h http.Handler, method, path, body string) {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(method, "/", strings.NewReader(body))
	r.URL.Path, _, _ = strings.Cut(path, "?")
	h.ServeHTTP(w, r)
	switch {
	case w.Code >= http.StatusInternalServerError:
		t.Fatalf("%s %q %q: %d %s", method, path, body, w.Code, w.Body)
	case w.Code >= http.StatusBadRequest &&
		w.Header().Get("Content-Type") != "application/problem+json":
		t.Fatalf("%s %q: %d as %q: %s", method, path, w.Code, w.Header().Get("Content-Type"), w.Body)
	}
}

// FuzzDeploy checks that no body makes the server fail.
func FuzzDeploy(f *testing.F) {
	h := open(f)
	handler := h.http.Config.Handler
	f.Add(web)
	for _, s := range []string{``, `{}`, `null`,
		`[]`, `{"name": "w", "command": ["x"], "scale": {"min": 1000000000}}`,
		`{"name": "w", "command": ["x"], "tenant": "../x"}`,
		`{"name": "w", "command": ["x"], "ports": [{"published": 0, "target": 0, "protocol": ""}]}`,
		`{"name": "w", "command": [null]}`,
		`{"name":"w","command":["x"],"health":{"ready":{"kind":"exec"}}}`, `{"NAME":"w","Command":["x"]}`,
		"{\"name\": \"w\", \"command\": [\"x\"], \"stop_seconds\": 1e308}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, body string) { through(t, handler, "POST", "/v1/services", body) })
}

// FuzzSelf checks that no request of an instance makes the agent fail.
func FuzzSelf(f *testing.F) {
	h := open(f)
	st := h.serving()
	handler := api.SelfHandler(h.agent.Self(), st.Instances[0].ID)
	methods := []string{"GET", "PUT", "POST", "PATCH", "DELETE", "OPTIONS"}
	for _, s := range []struct {
		method     uint8
		path, body string
	}{{1, "/v1/self/metrics", `{"a": 1}`}, {1, "/v1/self/state/a", "x"},
		{3, "/v1/self/state/hits", "-5"}, {4, "/v1/self/state/a/b", ""}, {0, "/v1/self/state/", ""},
		{2, "/v1/self/state/commit", `{"message": ""}`}, {1, "/v1/self/state/%2e%2e/x", ""},
		{1, "/v1/self/state/a\x00b", ""}, {2, "/v1/self/halt", `{"inputs": {"a": 1e999}}`},
		{1, "/v1/self/state/hits/", "1"}, {0, "/v1/self", ""}, {5, "*", ""}} {
		f.Add(s.method, s.path, s.body)
	}
	f.Fuzz(func(t *testing.T, method uint8, path, body string) {
		if path == "/v1/self/events" {
			t.Skip("a stream does not end")
		}
		through(t, handler, methods[int(method)%len(methods)], path, body)
	})
}
